"""What the tests share: daemons, clients in other processes, a hostile client, and proofs of cleanliness."""
