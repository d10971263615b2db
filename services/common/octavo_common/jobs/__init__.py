"""What a job is and how it may change. Pure: no SQL, no clock, no I/O."""
