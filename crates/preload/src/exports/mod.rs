//! The functions that stand in the place of the C library's. Each looks whose the descriptor is; for the kernel's it is the C library's function and
//! nothing else, with nothing on the stack that an end of the thread would have to clean up.
//!
//! | file | functions |
//! | --- | --- |
//! | `bytes` | read, write, recv, send and their families, sendfile |
//! | `sockets` | bind, connect, listen, accept, shutdown, names, options |
//! | `descriptors` | close, dup, fcntl, ioctl, fdopen |
//! | `waiting` | poll, select, epoll |

mod bytes;
mod descriptors;
mod sockets;
mod waiting;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::{CallResult, Errno};
use crate::{message, real};

/// Returns the result of one of our calls in the C library's form.
fn answer<T: TryInto<isize>>(call: impl FnOnce() -> CallResult<T>) -> isize {
    // A fault of this library is an error of the call: nothing unwinds into a program that knows no such thing.
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        message::once("a fault within the library (EIO); please report what the program did");
        Err(Errno::IO)
    });
    match outcome.map(|value| value.try_into().unwrap_or(isize::MAX)) {
        Ok(value) => value,
        Err(errno) => {
            real::set_errno(errno);
            -1
        }
    }
}

/// The same for functions whose result is an `int`.
fn status(call: impl FnOnce() -> CallResult<c_int>) -> c_int {
    answer(call) as c_int
}

/// Refuses an unsupported call: reports it once and sets errno.
fn refuse(text: &str, errno: Errno) -> c_int {
    message::once(text);
    real::set_errno(errno);
    -1
}
