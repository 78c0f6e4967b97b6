//! Passwords known to be right or wrong.

use std::collections::{HashMap, VecDeque};

use millrace_core::time::Instant;

use crate::limits::{CHECKED_RIGHT_NS, CHECKED_WRONG_NS, MAX_CHECKED};

/// Name and password, hashed with a key of this run.
pub(crate) type Pair = [u8; 32];

/// Bounded in number and in time.
#[derive(Debug)]
pub(crate) struct Checked {
    pairs: HashMap<Pair, (bool, Instant)>,
    /// In the order in which they came; one that came again stands here twice until its first place is reached.
    order: VecDeque<(Pair, Instant)>,
    most: usize,
}

impl Default for Checked {
    fn default() -> Self {
        Self { pairs: HashMap::new(), order: VecDeque::new(), most: MAX_CHECKED }
    }
}

impl Checked {
    /// The pair of a name and a password.
    pub(crate) fn pair(key: &[u8; 32], user: &str, password: &str) -> Pair {
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(&(user.len() as u64).to_be_bytes()).update(user.as_bytes()).update(password.as_bytes());
        *hasher.finalize().as_bytes()
    }

    /// Whether it is right; `None`: that is not known.
    pub(crate) fn get(&self, pair: &Pair, now: Instant) -> Option<bool> {
        self.pairs.get(pair).filter(|(_, until)| now < *until).map(|(is_right, _)| *is_right)
    }

    pub(crate) fn note(&mut self, pair: Pair, is_right: bool, now: Instant) {
        let until = now.plus_ns(if is_right { CHECKED_RIGHT_NS } else { CHECKED_WRONG_NS });
        self.pairs.insert(pair, (is_right, until));
        self.order.push_back((pair, until));
        while self.order.len() > self.most {
            let Some((oldest, until)) = self.order.pop_front() else { break };
            if self.pairs.get(&oldest).is_some_and(|(_, last)| *last == until) {
                self.pairs.remove(&oldest);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        (self.pairs, self.order) = (HashMap::new(), VecDeque::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_for_a_time_and_not_more_than_so_many() {
        let mut checked = Checked { most: 4, ..Checked::default() };
        let pair = |number: u8| Checked::pair(&[number; 32], "anna", "password");
        let now = Instant(5);
        checked.note(pair(0), true, now);
        checked.note(pair(1), false, now);
        assert_eq!((checked.get(&pair(0), now), checked.get(&pair(1), now)), (Some(true), Some(false)));
        assert_eq!(checked.get(&pair(2), now), None);
        let later = now.plus_ns(CHECKED_WRONG_NS);
        assert_eq!((checked.get(&pair(0), later), checked.get(&pair(1), later)), (Some(true), None));
        assert_eq!(checked.get(&pair(0), now.plus_ns(CHECKED_RIGHT_NS)), None);
        checked.note(pair(0), true, later);
        for number in 2..5 {
            checked.note(pair(number), true, later);
        }
        assert_eq!(checked.get(&pair(0), later), Some(true), "it came again");
        checked.note(pair(5), true, later);
        assert_eq!(checked.get(&pair(0), later), None);
        assert!(checked.pairs.len() <= 4 && checked.order.len() == 4);
        checked.clear();
        assert_eq!(checked.get(&pair(5), later), None);
    }

    #[test]
    fn pair_with_moved_boundary_or_other_key_differs() {
        let pair = |user, password| Checked::pair(&[0; 32], user, password);
        assert_ne!(pair("anna", "x"), pair("ann", "ax"));
        assert_ne!(pair("anna", "x"), Checked::pair(&[1; 32], "anna", "x"));
    }
}
