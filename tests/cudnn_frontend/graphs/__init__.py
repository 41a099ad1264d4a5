"""What programs of cudnn-frontend compute, through its unmodified wheel; ``test_wheel`` runs each file in a process."""
