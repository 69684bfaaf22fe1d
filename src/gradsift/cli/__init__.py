"""The command line. Nothing here imports torch before there is work to do, so that ``--help`` is quick."""
