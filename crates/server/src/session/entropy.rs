//! Where session names come from.

/// The source of session names: they are the only key to a session, so they must not be guessable.
pub trait Entropy: Send {
    /// Sixteen unpredictable bytes; `None` when the system gives none.
    fn bytes16(&mut self) -> Option<[u8; 16]>;
}

/// The kernel's random numbers.
#[derive(Debug)]
pub struct SystemEntropy(std::fs::File);

impl SystemEntropy {
    /// Opens `/dev/urandom`.
    ///
    /// # Errors
    /// When it is missing (a bare chroot) or no descriptor is left.
    pub fn open() -> std::io::Result<Self> {
        std::fs::File::open("/dev/urandom").map(Self)
    }
}

impl Entropy for SystemEntropy {
    fn bytes16(&mut self) -> Option<[u8; 16]> {
        use std::io::Read;
        let mut bytes = [0; 16];
        self.0.read_exact(&mut bytes).ok().map(|()| bytes)
    }
}
