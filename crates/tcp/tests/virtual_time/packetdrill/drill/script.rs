//! The elements of a script.

use std::fmt;

use super::segment::Segment;

/// Author of a script: determines which differences are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Written for this stack: everything is compared.
    Ours,
    /// Written for Linux. Not compared: the order of options and the padding between them; PSH,
    /// which RFC 9293 requires with the last byte only; values of time stamps; ACKs that report
    /// only a larger window; segments after the last event. Times may be 4 ms off, packetdrill's
    /// default.
    Linux,
}

/// When something happens, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// At a time of the script.
    At(i64),
    /// This long after the previous event.
    After(i64),
    /// Between two times.
    Within(i64, i64),
    /// Between two times after the event before.
    AfterWithin(i64, i64),
    /// Any time.
    Any,
}

/// A line of a script.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) line: usize,
    pub(super) when: When,
    pub(super) action: Action,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// A segment arrives.
    Arrives(Segment),
    /// A segment goes out.
    Leaves(Segment),
    Call(Call),
    Shell(String),
    Python(String),
}

/// A system call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) args: Vec<Expr>,
    pub(super) result: i64,
    /// `EAGAIN` and so on.
    pub(super) errno: Option<String>,
    /// It blocks until then, in nanoseconds, counted as the begin is.
    pub(super) until: Option<i64>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expr {
    Number(i64),
    /// One name, or several joined by `|`.
    Names(Vec<String>),
    Text(String),
    /// `[a, b]`, or `{a, b}`.
    List(Vec<Self>),
    /// `{name = a, other = b}`
    Fields(Vec<(String, Self)>),
    /// `htons(80)`
    Function(String, Vec<Self>),
    /// `...`
    Anything,
}

impl Expr {
    pub(super) fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::List(items) => items.first().and_then(Self::number),
            Self::Function(_, args) => args.first().and_then(Self::number),
            _ => None,
        }
    }

    /// The field of this name, wherever within.
    pub(super) fn field(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Fields(fields) => fields
                .iter()
                .find_map(|(known, value)| if known == name { Some(value) } else { value.field(name) }),
            Self::List(items) => items.iter().find_map(|item| item.field(name)),
            _ => None,
        }
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        matches!(self, Self::Names(names) if names.iter().any(|known| known == name))
    }
}

/// A script that was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// `--name=value`
    pub(super) options: Vec<(String, String)>,
    /// Commands before the first event.
    pub(super) init: Vec<(usize, String)>,
    pub(super) events: Vec<Event>,
}

/// Nanoseconds as scripts write them.
pub(super) struct Seconds(pub(super) i64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s", self.0 as f64 / 1e9)
    }
}
