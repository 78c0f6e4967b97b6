//! An offload engine opposite this kernel: a TUN device in a namespace of its own lies between them. Needs root.

use std::fs::File;
use std::io;

use millrace_offload::toe::{Engine, EngineSettings, Stopped, TunDevice};

use crate::netns::inside;
use crate::tcp_host::{KERNEL_IP, OUR_IP, kernel_at};

/// A running engine at [`OUR_IP`]; the kernel is at [`KERNEL_IP`].
pub struct ToeHost {
    engine: Engine,
    kernel: File,
}

impl ToeHost {
    /// Settings of an engine at [`OUR_IP`].
    pub fn settings() -> EngineSettings {
        EngineSettings::new(&[(OUR_IP.into(), 24)])
    }

    /// Starts the engine.
    ///
    /// # Errors
    /// Without root, `ip` or TUN devices; a setting that cannot be.
    pub fn start(settings: &EngineSettings) -> anyhow::Result<Self> {
        let (kernel, tun) = kernel_at(KERNEL_IP)?;
        let engine = Engine::start(settings, Box::new(TunDevice::new(tun)))?;
        Ok(Self { engine, kernel })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs `work` on a thread whose sockets are the kernel's.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn in_kernel<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        inside(&self.kernel, work)
    }

    /// Ends the engine; what it has done.
    ///
    /// # Errors
    /// Why it had ended before.
    pub fn stop(self) -> io::Result<Stopped> {
        self.engine.stop()
    }
}
