//! A film's name in URLs: lower-case ASCII letters, digits, `-`, `_`, `.`.

/// Longest name: it becomes part of URLs and file listings.
pub(super) const MAX_NAME_CHARS: usize = 100;
/// Name of a film whose own name has no usable character.
const NAMELESS: &str = "film";

/// `text` as a name: letters of European languages lose their accents, other characters become `-`, never two in a row
/// and none at the ends. Never empty.
pub fn slug(text: &str) -> String {
    let mut name = String::new();
    let mut gap = false;
    for c in text.chars() {
        let before = name.len();
        match c {
            'a'..='z' | '0'..='9' | '_' | '.' => name.push(c),
            'A'..='Z' => name.push(c.to_ascii_lowercase()),
            // Quotes inside words and combining accents vanish.
            '\'' | '\u{2019}' | '\u{300}'..='\u{36f}' => continue,
            _ => name.push_str(transliterate(c)),
        }
        if name.len() == before {
            gap = true;
        } else if std::mem::take(&mut gap) && before > 0 {
            name.insert(before, '-');
        }
    }
    name.truncate(MAX_NAME_CHARS);
    // A name of dots would be a path; one that begins with a dot or dash is hidden or an option.
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { NAMELESS.to_owned() } else { name.to_owned() }
}

/// ASCII letters for one letter of Latin-1 or Latin Extended-A; nothing for anything else.
fn transliterate(c: char) -> &'static str {
    match c {
        'ä' | 'Ä' | 'æ' | 'Æ' => "ae",
        'ö' | 'Ö' | 'œ' | 'Œ' => "oe",
        'ü' | 'Ü' => "ue",
        'ß' => "ss",
        'þ' | 'Þ' => "th",
        'à' | 'á' | 'â' | 'ã' | 'å' | 'À' | 'Á' | 'Â' | 'Ã' | 'Å' | 'ā' | 'Ā' | 'ă' | 'Ă' | 'ą' | 'Ą' => {
            "a"
        }
        'ç' | 'Ç' | 'ć' | 'Ć' | 'č' | 'Č' | 'ĉ' | 'Ĉ' | 'ċ' | 'Ċ' => "c",
        'ð' | 'Ð' | 'ď' | 'Ď' | 'đ' | 'Đ' => "d",
        'è' | 'é' | 'ê' | 'ë' | 'È' | 'É' | 'Ê' | 'Ë' | 'ē' | 'Ē' | 'ė' | 'Ė' | 'ę' | 'Ę' | 'ě' | 'Ě' => {
            "e"
        }
        'ğ' | 'Ğ' | 'ģ' | 'Ģ' => "g",
        'ì' | 'í' | 'î' | 'ï' | 'Ì' | 'Í' | 'Î' | 'Ï' | 'ī' | 'Ī' | 'į' | 'Į' | 'ı' | 'İ' => {
            "i"
        }
        'ķ' | 'Ķ' => "k",
        'ł' | 'Ł' | 'ļ' | 'Ļ' | 'ľ' | 'Ľ' | 'ĺ' | 'Ĺ' => "l",
        'ñ' | 'Ñ' | 'ń' | 'Ń' | 'ň' | 'Ň' | 'ņ' | 'Ņ' => "n",
        'ò' | 'ó' | 'ô' | 'õ' | 'ø' | 'Ò' | 'Ó' | 'Ô' | 'Õ' | 'Ø' | 'ō' | 'Ō' | 'ő' | 'Ő' => {
            "o"
        }
        'ř' | 'Ř' | 'ŕ' | 'Ŕ' => "r",
        'ś' | 'Ś' | 'š' | 'Š' | 'ş' | 'Ş' | 'ș' | 'Ș' => "s",
        'ť' | 'Ť' | 'ţ' | 'Ţ' | 'ț' | 'Ț' => "t",
        'ù' | 'ú' | 'û' | 'Ù' | 'Ú' | 'Û' | 'ū' | 'Ū' | 'ů' | 'Ů' | 'ű' | 'Ű' | 'ų' | 'Ų' => {
            "u"
        }
        'ý' | 'ÿ' | 'Ý' | 'Ÿ' => "y",
        'ź' | 'Ź' | 'ż' | 'Ż' | 'ž' | 'Ž' => "z",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_people_give() {
        for (text, name) in [
            ("Big Buck Bunny (2008)", "big-buck-bunny-2008"),
            ("Le Fabuleux Destin d'Amélie Poulain", "le-fabuleux-destin-damelie-poulain"),
            ("Die Blechtrommel – Größe", "die-blechtrommel-groesse"),
            ("clip_cbr.v2", "clip_cbr.v2"),
            ("S01E02 -- pilot", "s01e02-pilot"),
            ("Москва", "film"),
            ("七人の侍 1954", "1954"),
            ("...", "film"),
            ("../../etc/passwd", "etc-passwd"),
            ("", "film"),
            ("-rf", "rf"),
        ] {
            assert_eq!(slug(text), name, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_url_safe_name(text in "\\PC{0,300}") {
            let name = slug(&text);
            prop_assert!(!name.is_empty() && name.len() <= MAX_NAME_CHARS);
            prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b)));
            prop_assert_eq!(slug(&name), name, "a name stays as it is");
        }
    }
}
