"""The command line. Each module declares its subcommands in `COMMANDS`; `headgate.cli.__main__` has their names."""
