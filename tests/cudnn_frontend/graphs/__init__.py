"""Programs of cudnn-frontend, through its unmodified wheel; ``test_wheel`` runs each file in a process."""
