//! From a film as people have it to a title as the store keeps it.
