use super::*;

/// A text with a table of contents, a page break within a sentence and a table of requirements.
const TEXT: &str = "\
1.  Introduction ....... 1
    3.1.  Header Format
    3.2.  Other

3.  Functions

3.1.  Header Format

   The pseudo-
   header MUST be summed (MUST-2) and the receiver MUST

Author              Best Current Practice                 [Page 4]
\u{c}
RFC 6191        Reducing TIME-WAIT State with Timestamps      April 2011

   check it (MUST-3).  The end.

3.1.1.  Deeper

   A window is unsigned, or it will not
   work (MUST-1).  More follows (MUST-9).  SYN retransmissions
   MUST be handled in the general way just described.

3.2.  Other

   Elsewhere.  A list (MUST-7 -- see MUST-8) ends.

Appendix B.  Table

    +====+========+
    | Sums                              |
    | Treat as      | MUST-1  |  X  |   |
    | unsigned      |         |     |   |
    +----+
    | * Sums        | MUST-2  |  X  |   |
    | Checked       | SHLD-7  |  X  |   |
    | sometimes     |         |     |   |
    | Checked       | MUST-3  |  X  |   |
    | * Again       | MUST-3  |  X  |   |
    | Other         | MUST-9  |     | X |

Acknowledgments

    | None          | MUST-10 |  X  |   |
";

fn quotes(text: &str) -> (Vec<Quote>, Vec<String>) {
    let (mut quotes, mut findings) = (Vec::new(), Vec::new());
    quote::read("crates/a.rs", text, &mut quotes, &mut findings);
    (quotes, findings)
}

#[test]
fn quotes_are_read_with_their_kind_and_place() {
    let (found, findings) = quotes(
        "fn a() {\n    //= RFC 9293 section 3.1\n    //# One\n    //# two.\n    //= RFC 6191 section 2.\n    //= type=test\n    //# Three\n    \
         b();\n}\n//= RFC 9293 section B\n//= type=exception\n//= reason=because = so\n//# Four\n",
    );
    assert_eq!(findings, Vec::<String>::new());
    let seen: Vec<_> = found.iter().map(|q| (q.rfc, &*q.section, q.kind, &*q.text, &*q.place)).collect();
    assert_eq!(
        seen,
        [
            (9293, "3.1", QuoteKind::Implemented, "Onetwo.", "crates/a.rs:2"),
            (6191, "2", QuoteKind::Tested, "Three", "crates/a.rs:5"),
            (9293, "B", QuoteKind::LeftOut, "Four", "crates/a.rs:10"),
        ]
    );
    assert_eq!(found[2].reason.as_deref(), Some("because = so"));
}

#[test]
fn quote_in_packet_script_counts_as_tested() {
    let (mut found, mut findings) = (Vec::new(), Vec::new());
    let text = "//= RFC 9293 section 3.1\n//# One\n0 socket(...) = 3\n";
    quote::read("crates/tcp/a.pkt", text, &mut found, &mut findings);
    assert_eq!((found[0].kind, findings), (QuoteKind::Tested, Vec::<String>::new()));
}

#[test]
fn quote_with_invalid_form_is_reported() {
    for (text, part) in [
        ("//# One\n", "without a source"),
        ("//= RFC 9293 section 3.1\nfn a() {}\n", "without a quote"),
        ("//= RFC 9293 section 3.1\n//= RFC 9293 section 3.2\n//# One\n", "without a quote"),
        ("//= RFC 9293\n", "is not of the form"),
        ("//= RFC 9293 section (3)\n", "is not of the form"),
        ("//= RFC 9293 section 3.1\n//= type=none\n//# One\n", "is neither"),
        ("//= RFC 9293 section 3.1\n//# One\n//= type=test\n", "does not stand between"),
        ("//= type=test\n", "does not stand between"),
        ("//= RFC 9293 section 3.1\n//= type=exception\n//# One\n", "without a reason"),
    ] {
        let (_, findings) = quotes(text);
        assert!(findings.len() == 1 && findings[0].contains(part), "{text}: {findings:?}");
    }
}

#[test]
fn rfc_find_ignores_whitespace_within_section() {
    let rfc = Rfc::new(TEXT);
    let find = |section: &str, quote: &str| rfc.find(section, &quote.replace([' ', '\n'], ""));
    assert_eq!(
        find("3.1", "The pseudo-header MUST be summed (MUST-2)"),
        Ok(vec![2, 3]),
        "to the end of its sentence"
    );
    assert_eq!(find("3.1", "the receiver MUST check it (MUST-3)."), Ok(vec![3]), "across the page");
    assert_eq!(find("3.1.1", "A window is unsigned"), Ok(vec![1]));
    assert_eq!(find("3.1", "it will not work"), Ok(vec![1]), "in a section of the section");
    assert_eq!(find("3", "More follows"), Ok(vec![9]));
    assert_eq!(find("3.2", "Elsewhere."), Ok(vec![]));
    assert_eq!(find("3.2", "A list (MUST-7"), Ok(vec![7]), "without what is remarked");
    assert!(find("3.2", "A window is unsigned").unwrap_err().contains("not in that section"));
    assert!(find("3.1", "A window is signed").unwrap_err().contains("not in that section"));
    assert!(find("3.3", "Elsewhere.").unwrap_err().contains("no such section"));
}

#[test]
fn headings_of_old_texts_are_indented() {
    let rfc = Rfc::new(
        "4. TRANSPORT\n\n      4.2.2.1  Ports\n\n  Well-known.\n\n      4.2.2.10  Push\n\n  Pushed.\n",
    );
    assert_eq!(rfc.find("4.2.2.1", "Well-known."), Ok(vec![]));
    assert!(rfc.find("4.2.2.1", "Pushed.").is_err());
    assert_eq!(rfc.find("4", "Pushed."), Ok(vec![]));
}

#[test]
fn requirements_are_listed_once_with_status() {
    let source = "\
//= RFC 9293 section 3.1.1
//# it will not work (MUST-1).
//= RFC 9293 section 3.1.1
//= type=test
//# it will not work (MUST-1).
//= RFC 9293 section 3.1
//# (MUST-2)
//= RFC 9293 section 3.1
//= type=exception
//= reason=hardware does
//# check it (MUST-3).
//= RFC 9293 section 3.1
//# nothing like it
";
    let (quotes, mut findings) = quotes(source);
    let texts = BTreeMap::from([(LISTED, Rfc::new(TEXT))]);
    let covered = compare(&quotes, &texts, &mut findings);
    assert_eq!(findings.len(), 1);
    assert!(findings[0].starts_with("crates/a.rs:12: the quote is not in that section"), "{findings:?}");
    let listed = requirements(&texts[&LISTED], &covered);
    let lines: Vec<String> =
        listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines,
        [
            "MUST-1 Treat as unsigned implemented and tested: crates/a.rs:1; crates/a.rs:3",
            "MUST-2 Sums implemented, not tested: crates/a.rs:6",
            "MUST-3 Checked implemented, not tested: crates/a.rs:6; crates/a.rs:8; hardware does",
            "MUST-9 Other not quoted",
            "RFC 9293 appendix B: 1 implemented and tested, 2 implemented, not tested, 1 not quoted",
        ]
    );
    assert_eq!(sections(&quotes, false), "RFC 9293: 3 implemented, 1 tested, 1 left out\n");
    assert!(
        sections(&quotes, true).contains("RFC 9293 section 3.1.1: 1 implemented, 1 tested, 0 left out\n")
    );
}

#[test]
fn missing_rfc_text_is_reported_once() {
    let (quotes, mut findings) = quotes("//= RFC 1 section 1\n//# One\n//= RFC 1 section 2\n//# Two\n");
    let texts = texts(Path::new("/nonexistent"), &quotes, &mut findings);
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings[0].starts_with("/nonexistent/rfc1.txt: ") && findings[1].contains("rfc9293.txt"));
    compare(&quotes, &texts, &mut findings);
    assert_eq!(findings.len(), 2);
}

#[test]
fn requirement_without_number_is_matched_by_words() {
    let (quotes, mut findings) = quotes(
        "//= RFC 9293 section 3.1.1\n//# SYN retransmissions MUST be handled in the general way just\n//# described.\n",
    );
    let texts = BTreeMap::from([(LISTED, Rfc::new(TEXT))]);
    let covered = compare(&quotes, &texts, &mut findings);
    assert_eq!((covered.keys().collect::<Vec<_>>(), findings), (vec![&22], Vec::new()));
}

#[test]
fn check_page_requires_row_for_each_exception_only() {
    let exception = "//= RFC 9293 section 3.1.1\n//= type=exception\n//= reason=so\n//# work (MUST-1).\n";
    let implemented = "//= RFC 9293 section 3.1.1\n//# More follows (MUST-9).\n";
    let (quotes, mut findings) = quotes(&format!("{exception}fn a() {{}}\n{implemented}fn b() {{}}\n"));
    let texts = BTreeMap::from([(LISTED, Rfc::new(TEXT))]);
    let covered = compare(&quotes, &texts, &mut findings);
    check_page("see MUST-9\n| MUST-1: unsigned | not so |\n", &covered, &mut findings);
    assert_eq!(findings, Vec::<String>::new());
    check_page("| MUST-9: more | no |\n| MUST-77 | never heard of |\n", &covered, &mut findings);
    assert_eq!(findings.len(), 3);
    for (finding, part) in
        findings.iter().zip(["MUST-1 is left out; add a row", "MUST-9 has a row", "MUST-77 has a row"])
    {
        assert!(finding.contains(part), "{finding}");
    }
}
