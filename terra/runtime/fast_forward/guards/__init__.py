"""What must still hold for a record to be replayed: which objects were read, what containers held, which functions of libraries were replaced since. Nothing is walked when it is compared."""
