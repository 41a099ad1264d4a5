"""An inference service: handwritten digits over HTTP, from a bundle, on a GPU or the emulated device.

    python -m tools.examples.service.model > cases.txt
    lowdnn cache export @cases.txt --arch sm_90a -o digits.bundle
    python -m tools.examples.service --bundle digits.bundle --port 8080
    python -m tools.examples.service.endurance --seconds 60       # the service under load, with faults

    POST /classify   {"image": [64 numbers from 0 to 1]} -> {"digit": 3, "scores": [10 numbers]}
    GET /healthz     200 while the process can serve at all: restart it otherwise
    GET /readyz      200 while it takes requests: send it none otherwise
    GET /metrics     the measures of lowdnn and of the service, for Prometheus

Requests wait in a bounded queue and run in batches, each of which is one execute of two plans. A request gets exactly
one answer: 200; 400 and its like where it is wrong; 500 where its batch failed; 503 with Retry-After where the queue is
full or the device is lost; 504 where its deadline (``X-Timeout-Ms``) passes first. SIGTERM takes the service out of
rotation, lets the requests that it has taken end, and leaves with status 0.
"""
