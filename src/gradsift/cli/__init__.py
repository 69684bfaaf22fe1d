"""The command line. A command is imported when it is carried out, so that ``--help`` need not wait for torch."""
