//! Names of titles: URL-safe slugs, unique in the store.

use millrace_core::limits::MAX_TITLE_NAME_BYTES;

use crate::format::manifest::is_slug;

/// Letters that people write with marks, without them. Enough for the Latin alphabets; others become `-`.
const PLAIN: [(&str, &str); 23] = [
    ("àáâãåāăą", "a"),
    ("äæ", "ae"),
    ("çćĉċč", "c"),
    ("ďđð", "d"),
    ("èéêëēĕėęě", "e"),
    ("ĝğġģ", "g"),
    ("ĥħ", "h"),
    ("ìíîïĩīĭįı", "i"),
    ("ĵ", "j"),
    ("ķ", "k"),
    ("ĺļľł", "l"),
    ("ñńņň", "n"),
    ("òóôõōŏő", "o"),
    ("öøœ", "oe"),
    ("ŕŗř", "r"),
    ("śŝşšș", "s"),
    ("ß", "ss"),
    ("ţťŧț", "t"),
    ("þ", "th"),
    ("ùúûũūŭůűų", "u"),
    ("ü", "ue"),
    ("ýÿŷ", "y"),
    ("źżž", "z"),
];

/// Begins names that have no usable character, or that could be taken for an id.
const NAMELESS: &str = "film";

/// The slug of a name as people write it: `Amélie (2001)` becomes `amelie-2001`.
pub fn slug(wish: &str) -> String {
    let slug = usable(wish);
    if is_slug(&slug) {
        return slug;
    }
    // Empty, or 32 hexadecimal digits.
    cut(format!("{NAMELESS}-{slug}").trim_end_matches('-'), MAX_TITLE_NAME_BYTES).to_owned()
}

/// Whether anything of a name can stand in a slug: of an empty one, or one in other letters than these, nothing can.
pub fn is_usable(wish: &str) -> bool {
    !usable(wish).is_empty()
}

/// What of a name can stand in a slug.
fn usable(wish: &str) -> String {
    let mut slug = String::with_capacity(wish.len());
    for c in wish.chars().flat_map(char::to_lowercase) {
        let plain = PLAIN.iter().find(|(marked, _)| marked.contains(c)).map(|(_, plain)| *plain);
        match (plain, c) {
            (Some(plain), _) => slug.push_str(plain),
            (None, 'a'..='z' | '0'..='9' | '.' | '_') => slug.push(c),
            // Quotes inside words and combining accents vanish.
            (None, '\'' | '\u{2019}' | '\u{300}'..='\u{36f}') => {}
            // One dash for any run of other characters.
            (None, _) if !slug.ends_with('-') => slug.push('-'),
            (None, _) => {}
        }
        if slug.len() >= MAX_TITLE_NAME_BYTES {
            break;
        }
    }
    cut(&slug, MAX_TITLE_NAME_BYTES).trim_matches(['-', '.', '_']).to_owned()
}

/// The slug of `wish`, or the first of `-2`, `-3` ... that is not `taken`.
pub(crate) fn unique(wish: &str, taken: impl Fn(&str) -> bool) -> String {
    let base = slug(wish);
    let mut name = base.clone();
    let mut number = 1u64;
    while taken(&name) {
        number += 1;
        let suffix = format!("-{number}");
        name = format!("{}{suffix}", cut(&base, MAX_TITLE_NAME_BYTES - suffix.len()));
    }
    name
}

/// At most `len` bytes; a slug has one byte per character.
fn cut(slug: &str, len: usize) -> &str {
    slug.get(..len).unwrap_or(slug)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_as_people_write_them() {
        for (wish, expected) in [
            ("Big Buck Bunny", "big-buck-bunny"),
            ("Amélie (2001)", "amelie-2001"),
            ("Die Brücke – Übergröße", "die-bruecke-uebergroesse"),
            ("../../etc/passwd", "etc-passwd"),
            ("Le Fabuleux Destin d'Amélie Poulain", "le-fabuleux-destin-damelie-poulain"),
            ("S01E02 -- pilot", "s01e02-pilot"),
            ("千と千尋", "film"),
            ("七人の侍 1954", "1954"),
            ("-rf", "rf"),
            ("", "film"),
            ("...", "film"),
            ("a_b.c", "a_b.c"),
            ("0123456789abcdef0123456789ABCDEF", "film-0123456789abcdef0123456789abcdef"),
        ] {
            assert_eq!(slug(wish), expected, "{wish}");
            assert_eq!(is_usable(wish), expected != "film", "{wish}");
        }
    }

    #[test]
    fn a_taken_name_gets_the_next_number() {
        let taken = ["film", "film-2", "film-4"];
        assert_eq!(unique("Film", |n| taken.contains(&n)), "film-3");
        let long = "x".repeat(500);
        let first = unique(&long, |_| false);
        let second = unique(&long, |n| n == first);
        assert_eq!((first.len(), second.len()), (MAX_TITLE_NAME_BYTES, MAX_TITLE_NAME_BYTES));
        assert!(second.ends_with("x-2"));
    }

    proptest! {
        #[test]
        fn every_wish_becomes_a_slug_and_a_slug_stays(wish in ".{0,200}") {
            let name = slug(&wish);
            prop_assert!(is_slug(&name), "{name:?}");
            prop_assert_eq!(slug(&name), name);
        }
    }
}
