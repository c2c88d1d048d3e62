"""`python -m headrace.cli` is `headrace`: starts a service without knowing where its script is
installed.
"""

from headrace.cli.entry import main

if __name__ == "__main__":
    main()
