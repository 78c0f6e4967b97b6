//! Listeners that a child of a fork has inherited. The first use opens them on the child's own queue pair, as further listeners of the same
//! address. The parent's goes on; the engine gives connections to those that accept.

use std::net::SocketAddr;

use super::Process;
use super::socket::SocketStage;
use crate::errno::{CallResult, Errno};
use crate::message;

impl Process {
    /// Sees to it that an inherited listener is being opened in this process. Any other socket stays as it is.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn open_inherited(&mut self, index: u32) -> CallResult<()> {
        match &self.sockets.get(index)?.stage {
            SocketStage::Inherited { failed: Some(errno), .. } => return Err(*errno),
            &SocketStage::Inherited { local, failed: None } => {
                let numbers =
                    self.begin_listen(index, local).map_err(|errno| self.cannot_open(index, local, errno))?;
                self.sockets.get(index)?.stage = SocketStage::Reopening { numbers, local };
            }
            SocketStage::Reopening { numbers, local } => {
                let (numbers, local) = (numbers.clone(), *local);
                match self.end_listen(&numbers) {
                    Ok(None) => {}
                    Ok(Some(())) => {
                        let stage = SocketStage::Listening { numbers, local };
                        self.sockets.get(index)?.stage = stage;
                    }
                    Err(errno) => return Err(self.cannot_open(index, local, errno)),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn cannot_open(&mut self, index: u32, local: SocketAddr, errno: Errno) -> Errno {
        message::once(&format!(
            "listener {local}, inherited from the parent process: cannot be opened in this one: {errno}; has the engine a queue pair for each worker \
             (millrace engine --pairs), and may the workers' user use it (--allow-uid)?"
        ));
        if let Ok(socket) = self.sockets.get(index) {
            socket.stage = SocketStage::Inherited { local, failed: Some(errno) };
        }
        errno
    }

    /// The program accepts at this socket, or waits for connections there: if it is a listener the engine is asked for one. While the program is busy
    /// otherwise others get them.
    pub(super) fn use_listener(&mut self, index: u32) {
        // Its failure is remembered, and a listener that has failed is silent.
        let _ = self.open_inherited(index);
        let Ok(SocketStage::Listening { numbers, .. }) = self.sockets.get(index).map(|of| &of.stage) else {
            return;
        };
        let numbers = numbers.clone();
        if let Ok(engine) = self.engine() {
            numbers.iter().for_each(|&number| engine.ask_for_next(number));
        }
    }
}
