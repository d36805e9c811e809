"""The migrations of the tables; run by `headgate.admin.database`."""
