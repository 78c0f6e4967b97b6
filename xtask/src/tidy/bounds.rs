//! Each bound stands in its crate's `src/limits.rs` (or the files of `src/limits/`) with its reason: a
//! constant of a shipped crate that is named like a bound and has a number of its own belongs there.

use super::{Finding, Tree};
use crate::rust_text::RustText;

/// Crates whose bounds stand there: those that are shipped, and the link and the load generator, without the benchmarks.
const SHIPPED: &[&str] = &[
    "core", "engine", "netio", "offload", "store", "stream", "server", "client", "ts", "tcp", "preload",
    "web", "rights", "tls", "make", "media", "link", "load", "objects",
];

/// Parts of a constant's name that say that it bounds something.
const BOUNDING: &[&str] = &[
    "MAX", "MIN", "MOST", "LEAST", "LONGEST", "SHORTEST", "LARGEST", "SMALLEST", "LIMIT", "LIMITS", "BOUND",
    "BOUNDS", "TIMEOUT", "TRIES", "RETRY", "RETRIES", "BACKLOG", "LINGER", "INTERVAL", "EVERY", "WAIT",
    "PAUSE", "BUFFER", "BUFFERS",
];

/// And ends of such names: times, and shares of a turn.
const BOUNDING_ENDS: &[&str] = &["_NS", "_MS", "_PER_TURN", "_PER_CALL"];

/// Constants that are named like bounds and are not ours to choose: file, name, whose they are.
const GIVEN: &[(&str, &str, &str)] = &[
    ("crates/client/src/receive.rs", "MAX_STEP", "RFC 3550 appendix A.1"),
    ("crates/core/src/packet.rs", "MAX_TICKS", "the bits that the format has"),
    (
        "crates/netio/src/features/ask.rs",
        "NETDEV_A_DEV_XDP_ZC_MAX_SEGS",
        "a number of the kernel's interface",
    ),
    ("crates/load/src/drop_probe/layout.rs", "MAX_STEP", "RFC 3550 appendix A.1"),
    ("crates/load/src/drop_probe/program/mod.rs", "MAX_TURNS", "the longest train of the kernel"),
    ("crates/load/src/viewer.rs", "MAX_KIND", "the last value of a byte but one"),
    ("crates/media/src/psi.rs", "MAX_SECTION_BYTES", "ISO/IEC 13818-1 section 2.4.4.4"),
    ("crates/netio/src/netlink/socket.rs", "NLMSG_MIN_TYPE", "a number of the kernel's interface"),
    ("crates/netio/src/recv.rs", "MAX_DATAGRAM_BYTES", "the longest datagram of IP"),
    ("crates/netio/src/route/neighbour_table.rs", "HOP_LIMIT", "RFC 1700"),
    ("crates/netio/src/route/neighbour_table.rs", "MULTICAST_HOP_LIMIT", "what sockets have"),
    ("crates/netio/src/sys/ethtool.rs", "MAX_NAME_BYTES", "IFNAMSIZ of the kernel"),
    ("crates/netio/src/sys/mmsg.rs", "MAX_PARTS", "UIO_MAXIOV of the kernel"),
    ("crates/netio/src/sys/tun.rs", "MAX_NAME_BYTES", "IFNAMSIZ of the kernel"),
    ("crates/netio/src/xdp/memory.rs", "MAX_DESCRIPTORS", "what the kernel takes in copy mode"),
    ("crates/netio/src/xdp/socket.rs", "MAX_TX_SKB_BUDGET", "a number of the kernel's interface"),
    ("crates/offload/src/thread_priority.rs", "LEAST_URGENT", "the lowest priority of a thread"),
    (
        "crates/offload/src/thread_priority.rs",
        "PROMPT_SLICE_NS",
        "the shortest slice that the kernel accepts",
    ),
    ("crates/store/src/stripes.rs", "MAX_FEC_DATA_UNITS", "SMPTE ST 2022-1"),
    ("crates/store/src/stripes.rs", "MIN_FEC_DATA_UNITS", "SMPTE ST 2022-1"),
    ("crates/tcp/src/cc/cubic.rs", "EPOCH_MAX", "half of what a tick's number can say"),
    ("crates/tcp/src/cc/hystart.rs", "MAX_RTT_THRESH", "RFC 9406 section 4.3"),
    ("crates/tcp/src/cc/hystart.rs", "MIN_RTT_DIVISOR", "RFC 9406 section 4.3"),
    ("crates/tcp/src/cc/hystart.rs", "MIN_RTT_THRESH", "RFC 9406 section 4.3"),
    ("crates/tcp/src/cc/validate.rs", "PERIOD_MIN", "RFC 7661 section 4.2"),
    ("crates/tcp/src/isn.rs", "TICK_NS", "RFC 6528 section 3"),
    ("crates/tcp/src/recover/tlp.rs", "PTO_FIRST_NS", "RFC 8985 section 7.2"),
    ("crates/tcp/src/wire/mod.rs", "MAX_SACKS", "RFC 2018 section 3"),
    ("crates/tcp/src/wire/options.rs", "USER_TIMEOUT", "the kind of an option, RFC 5482 section 3"),
];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    check_but(GIVEN, tree, findings);
}

/// [`check`] with these constants excepted.
fn check_but(given: &[(&str, &str, &str)], tree: &Tree, findings: &mut Vec<Finding>) {
    let mut needed = vec![false; given.len()];
    for (file, rust) in tree.rust().filter(|(file, _)| is_shipped(&file.path) && !file.is_test()) {
        for (at, name) in bounds(rust) {
            if let Some(index) =
                given.iter().position(|(path, given, _)| *path == file.path && *given == name)
            {
                needed[index] = true;
                continue;
            }
            findings.push(Finding {
                path: file.path.clone(),
                line: rust.line(at),
                what: format!("`{name}` is a bound outside src/limits of its crate"),
                remedy: "put it there with its reason; what a format or the kernel gives is listed in \
                         xtask/src/tidy/bounds.rs"
                    .into(),
            });
        }
    }
    for ((path, name, _), _) in given.iter().zip(needed).filter(|(_, needed)| !needed) {
        findings.push(Finding {
            path: "xtask/src/tidy/bounds.rs".into(),
            line: 0,
            what: format!("excepts a constant that is not there: {name} in {path}"),
            remedy: "remove or repair the entry".into(),
        });
    }
}

fn is_shipped(path: &str) -> bool {
    let of_shipped = path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"));
    of_shipped.is_some_and(|(name, file)| {
        SHIPPED.contains(&name) && file != "limits.rs" && !file.starts_with("limits/")
    })
}

/// Where constants are defined that bound something, and their names. A value without a number of its own follows from constants
/// that are bounds already.
fn bounds(rust: &RustText) -> Vec<(usize, &str)> {
    let constants = rust.words("const").filter(|at| !rust.in_test(*at)).filter_map(|at| {
        let rest = rust.code[at + "const".len()..].trim_start();
        let name =
            &rest[..rest.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))?];
        let rest = rest[name.len()..].strip_prefix(':')?;
        // A parameter of a generic type has no value.
        let at_value = rest.find(['=', ';', '{', ',', '(']).filter(|at| rest[*at..].starts_with('='))?;
        let (kind, rest) = rest.split_at(at_value);
        let value = &rest[..rest.find(';')?];
        let bounds =
            is_number(kind.trim()) && (is_time(kind.trim()) || names_a_bound(name)) && has_number(value);
        bounds.then_some((at, name))
    });
    constants.collect()
}

fn names_a_bound(name: &str) -> bool {
    name.split('_').any(|part| BOUNDING.contains(&part))
        || BOUNDING_ENDS.iter().any(|end| name.ends_with(end))
}

fn is_time(kind: &str) -> bool {
    kind.ends_with("Duration")
}

/// A number, a time or a range of numbers.
fn is_number(kind: &str) -> bool {
    let inner = kind.split_once('<').map_or(kind, |(_, inner)| inner.trim_end_matches('>'));
    let bits = inner.strip_prefix(['u', 'i', 'f']);
    let is_primitive = bits.is_some_and(|bits| bits == "size" || bits.bytes().all(|b| b.is_ascii_digit()));
    is_time(kind) || kind == "Ns" || is_primitive
}

/// Whether a number is written out in `code`.
fn has_number(code: &str) -> bool {
    let mut before = ' ';
    code.chars().any(|c| {
        let begins = c.is_ascii_digit() && !(before == '_' || before.is_alphanumeric());
        before = c;
        begins
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let mut findings = Vec::new();
        check_but(&[], &Tree::of(&[(path, text)]), &mut findings);
        findings.into_iter().map(|f| (f.line, f.what)).collect()
    }

    fn lines(path: &str, text: &str) -> Vec<usize> {
        found(path, text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn bounds_stand_in_one_place() {
        let text = "const MAX_VIEWERS: usize = 1 << 10;\n";
        let what = "`MAX_VIEWERS` is a bound outside src/limits of its crate".to_owned();
        assert_eq!(found("crates/server/src/a.rs", text), [(1, what)]);
        for path in ["crates/core/src/limits/control.rs", "crates/tcp/src/limits.rs"] {
            assert_eq!(lines(path, text), [] as [usize; 0], "{path}");
        }
        for path in [
            "crates/lab/src/a.rs",
            "crates/server/tests/a.rs",
            "crates/server/src/a_tests.rs",
            "xtask/src/a.rs",
        ] {
            assert_eq!(lines(path, text), [] as [usize; 0], "{path}");
        }
        let tested = format!("#[cfg(test)]\nmod tests {{\n    {text}}}\n");
        assert_eq!(lines("crates/server/src/a.rs", &tested), [] as [usize; 0]);
    }

    #[test]
    fn names_and_types_tell_bounds() {
        for bad in [
            "pub(super) const READ_TIMEOUT: std::time::Duration = Duration::from_secs(1);",
            "const LINGER: Duration = Duration::from_millis(500);",
            "impl A {\n    const WAIT_NS: u64 =\n        7;\n}",
            "const DROP_LIMIT: u32 = 3;",
            "const READS_PER_TURN: usize = 2 * READS;",
            "const MIN_SHARE: f64 = 0.5;",
            "const ASK_RETRY: RangeInclusive<u8> = 2..=64;",
        ] {
            assert_eq!(lines("crates/netio/src/a.rs", bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn other_constants_may_stand_anywhere() {
        for good in [
            "const MAX_SOURCES: usize = MAX_DATA_UNITS;",
            "const HEADER_BYTES: usize = 12;",
            "const MAX_PAYLOAD: usize = u16::MAX as usize - IPV4_BYTES;",
            "const MAX_NAME: &str = \"12\";",
            "struct A<const MAX: usize>;\nfn max(a: *const u8) -> usize { 1 }",
            "fn a<const MAX_A: usize>(a: [u8; MAX_A]) {\n    let a = 1;\n}",
            "// const MAX_A: u8 = 1;\nlet text = \"const MAX_B: u8 = 1;\";",
            "const MAXIMAL: u8 = 1;",
        ] {
            assert_eq!(found("crates/netio/src/a.rs", good), [], "{good}");
        }
    }

    #[test]
    fn bound_exceptions_must_match_existing_constants() {
        let given: &[_] = &[("crates/netio/src/a.rs", "MAX_PARTS", "the kernel's")];
        let mut findings = Vec::new();
        let tree = Tree::of(&[("crates/netio/src/a.rs", "const MAX_PARTS: usize = 1024;")]);
        check_but(given, &tree, &mut findings);
        assert_eq!(findings, []);
        check_but(given, &Tree::of(&[("crates/netio/src/b.rs", "")]), &mut findings);
        let what: Vec<_> = findings.into_iter().map(|f| f.what).collect();
        assert_eq!(what, ["excepts a constant that is not there: MAX_PARTS in crates/netio/src/a.rs"]);
    }
}
