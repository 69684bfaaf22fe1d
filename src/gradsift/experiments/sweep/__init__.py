"""A sweep over fixed k, against which ``gradsift regret`` measures controllers: its runs, tables and drawings."""
