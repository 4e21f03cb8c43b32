"""`python -m proxy` is the same as `toolproxy`."""

from proxy.cli import main

if __name__ == "__main__":
    main()
