"""The edge builder as a service: takes builds from the job table, one at a time, each in a process of its own."""
