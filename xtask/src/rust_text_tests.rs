use super::*;

fn code(text: &str) -> String {
    let split = RustText::new(text);
    assert_eq!(split.code.len(), text.len());
    assert_eq!(split.comments.len(), text.len());
    split.code.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn comments_and_strings_are_not_code() {
    assert_eq!(code("a // b\nc"), "a c");
    assert_eq!(code("a /* b /* c */ d */ e"), "a e");
    assert_eq!(code(r#"f("a \" // b", 1)"#), "f( , 1)");
    assert_eq!(code(r##"f(r#"a " b"#, br"x\", c"y")"##), "f( , , )");
    assert_eq!(code("f(b\"x\", b'\\'', 'ü', '\\u{1F600}')"), "f( , , , )");
}

#[test]
fn lifetimes_and_raw_identifiers_are_code() {
    assert_eq!(code("fn f<'a>(x: &'a str) -> &'a str { x }"), "fn f<'a>(x: &'a str) -> &'a str { x }");
    assert_eq!(code("let r#fn = br; let c = b;"), "let r#fn = br; let c = b;");
    assert_eq!(code("for_bar\"text\""), "for_bar");
}

#[test]
fn comments_are_kept_apart_with_their_place() {
    let text = RustText::new("let x = \"// no\"; // SAFETY: yes\n/* also */ y\n");
    let lines: Vec<_> = text.comments.lines().map(str::trim).collect();
    assert_eq!(lines, ["// SAFETY: yes", "/* also */"]);
}

#[test]
fn words_end_where_identifiers_end() {
    let text = RustText::new("unsafe { } unsafe_code  deny(unsafe) x.unsafe2");
    assert_eq!(text.words("unsafe").collect::<Vec<_>>(), [0, 29]);
    let text = RustText::new("println!(\"\"); eprintln!(\"println!\"); std::println!()");
    assert_eq!(text.words("println!").count(), 2);
    assert_eq!(text.words("eprintln!").count(), 1);
}

#[test]
fn lines_count_from_one() {
    let text = RustText::new("a\nb\n\nc");
    assert_eq!([0, 1, 2, 4, 5].map(|at| text.line(at)), [1, 1, 2, 3, 4]);
}

#[test]
fn tests_are_told_from_the_rest() {
    let source = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
    let text = RustText::new(source);
    assert!(!text.in_test(source.find("fn a").unwrap()));
    assert!(text.in_test(source.find("fn b").unwrap()));
    assert!(!text.in_test(source.find("fn c").unwrap()));
    assert_eq!(text.lines_without_tests(), 3);
}

#[test]
fn in_test_recognizes_all_test_item_forms() {
    for source in [
        "#[cfg(test)]\n#[path = \"x[1].rs\"]\nmod tests;\nlast",
        "#[cfg(all(test, unix))]\nuse a::{b, c};\nlast",
        "#[test]\nfn t(a: [u8; 4]) { if x { y } }\nlast",
    ] {
        let text = RustText::new(source);
        assert!(text.in_test(source.find("last").unwrap() - 2), "{source}");
        assert!(!text.in_test(source.find("last").unwrap()), "{source}");
    }
    for source in ["#[cfg(not(test))]\nfn f() {}", "#[cfg(feature = \"test\")]\nfn f() {}"] {
        assert!(!RustText::new(source).in_test(source.len() - 2), "{source}");
    }
}

#[test]
fn functions_are_found_with_their_bodies() {
    let source =
        "trait T { fn none(); fn some(&self, a: [u8; 2]) -> u8 { { 1 } } }\ntype F = fn(u8);\nfn last() {}";
    let text = RustText::new(source);
    let found: Vec<_> = text.functions().into_iter().map(|f| (f.name, &source[f.span])).collect();
    assert_eq!(
        found,
        [
            ("some".to_owned(), "fn some(&self, a: [u8; 2]) -> u8 { { 1 } }"),
            ("last".to_owned(), "fn last() {}"),
        ]
    );
}
