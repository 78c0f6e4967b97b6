//! The frame of a command, for `millrace` and `millrace-lab` alike.
//!
//! | module | holds |
//! | --- | --- |
//! | [`terminal`] | standard output and error for text: no control character of others reaches a terminal |
//! | [`exit`] | errors, and the exit code that goes with each |
//! | [`signals`] | signals that end a command, and signals that must not |
//! | [`percent`] | shares on the command line |
//!
//! The modules of commands begin with macros `print!`, `println!`, `eprint!` and `eprintln!` that lead here, so that none of
//! those of the standard library is left.
#![forbid(unsafe_code)]

pub mod exit;
pub mod percent;
pub mod signals;
pub mod terminal;

/// As in the standard library, but unprintable characters are escaped.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::terminal::print(::core::format_args!($($text)*), "") };
}

/// As in the standard library, but unprintable characters are escaped.
#[macro_export]
macro_rules! println {
    () => { $crate::terminal::print(::core::format_args!(""), "\n") };
    ($($text:tt)*) => { $crate::terminal::print(::core::format_args!($($text)*), "\n") };
}

/// As in the standard library, but unprintable characters are escaped.
#[macro_export]
macro_rules! eprint {
    ($($text:tt)*) => { $crate::terminal::eprint(::core::format_args!($($text)*), "") };
}

/// As in the standard library, but unprintable characters are escaped.
#[macro_export]
macro_rules! eprintln {
    () => { $crate::terminal::eprint(::core::format_args!(""), "\n") };
    ($($text:tt)*) => { $crate::terminal::eprint(::core::format_args!($($text)*), "\n") };
}
