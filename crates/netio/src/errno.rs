//! Error numbers that the kernel would return.

use millrace_core::shape::Misshapen;

/// To a payload that is no datagrams.
pub(crate) fn errno_of(why: Misshapen) -> i32 {
    match why {
        Misshapen::Invalid => libc::EINVAL,
        Misshapen::TooLong => libc::EMSGSIZE,
        Misshapen::Bytes => libc::EOPNOTSUPP,
    }
}
