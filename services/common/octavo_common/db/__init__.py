"""The database itself: tables, connections, migrations, and a server of our own. Knows no rules about jobs."""
