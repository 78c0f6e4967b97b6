//! The one copy of the film in memory: read ahead, lent to many, evicted by next use.
