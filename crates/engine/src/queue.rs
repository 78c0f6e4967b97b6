//! A queue of stream indices in which each stream stands at most once, so that it can never overflow: what there is to
//! say about a stream are bits in its state, and the queue only holds the streams that have something to say.

/// See the module.
pub(crate) struct IndexQueue {
    ring: Box<[u32]>,
    queued: Box<[bool]>,
    head: usize,
    len: usize,
}

impl IndexQueue {
    /// Creates a queue for indices below `streams`, which must not be 0.
    pub(crate) fn new(streams: usize) -> Self {
        Self { ring: vec![0; streams].into(), queued: vec![false; streams].into(), head: 0, len: 0 }
    }

    /// At the end, unless it is in the queue.
    pub(crate) fn push_back(&mut self, index: u32) {
        if !std::mem::replace(&mut self.queued[index as usize], true) {
            let at = self.wrap(self.head + self.len);
            self.ring[at] = index;
            self.len += 1;
        }
    }

    /// In front, unless it is in the queue.
    pub(crate) fn push_front(&mut self, index: u32) {
        if !std::mem::replace(&mut self.queued[index as usize], true) {
            self.head = self.wrap(self.head + self.ring.len() - 1);
            self.ring[self.head] = index;
            self.len += 1;
        }
    }

    /// The stream in front.
    pub(crate) fn front(&self) -> Option<u32> {
        (self.len > 0).then(|| self.ring[self.head])
    }

    /// Takes away the stream in front.
    pub(crate) fn pop_front(&mut self) {
        if let Some(index) = self.front() {
            self.queued[index as usize] = false;
            self.head = self.wrap(self.head + 1);
            self.len -= 1;
        }
    }

    fn wrap(&self, at: usize) -> usize {
        if at >= self.ring.len() { at - self.ring.len() } else { at }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_deque_without_doubles(streams in 1usize..9,
                                                ops in proptest::collection::vec((0u8..3, 0u32..9), 0..200)) {
            let mut queue = IndexQueue::new(streams);
            let mut model = VecDeque::new();
            for (op, index) in ops {
                let index = index % streams as u32;
                match op {
                    0 => {
                        queue.push_back(index);
                        if !model.contains(&index) {
                            model.push_back(index);
                        }
                    }
                    1 => {
                        queue.push_front(index);
                        if !model.contains(&index) {
                            model.push_front(index);
                        }
                    }
                    _ => {
                        queue.pop_front();
                        model.pop_front();
                    }
                }
                prop_assert_eq!(queue.front(), model.front().copied());
            }
            while let Some(index) = queue.front() {
                prop_assert_eq!(Some(index), model.pop_front());
                queue.pop_front();
            }
            prop_assert!(model.is_empty());
        }
    }
}
