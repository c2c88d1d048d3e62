"""`python -m headrace.cli` is `headrace`: for starting a service whatever folder its script was
installed to.
"""

from headrace.cli.entry import main

if __name__ == "__main__":
    main()
