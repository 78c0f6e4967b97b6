//! Language names: converts the ISO 639-2 codes of transport streams to RFC 5646 tags for playlists
//! and to names for people.

/// Languages with a two-letter code: ISO 639-2 (terminological, then bibliographic if different),
/// ISO 639-1, name.
const LANGUAGES: &str = "\
    aar aa Afar;abk ab Abkhazian;afr af Afrikaans;aka ak Akan;amh am Amharic;ara ar Arabic;arg an Aragonese;\
    asm as Assamese;ava av Avaric;ave ae Avestan;aym ay Aymara;aze az Azerbaijani;bak ba Bashkir;bam bm Bambara;\
    bel be Belarusian;ben bn Bengali;bih bh Bihari;bis bi Bislama;bod/tib bo Tibetan;bos bs Bosnian;\
    bre br Breton;bul bg Bulgarian;cat ca Catalan;ces/cze cs Czech;cha ch Chamorro;che ce Chechen;\
    chu cu Church Slavic;chv cv Chuvash;cor kw Cornish;cos co Corsican;cre cr Cree;cym/wel cy Welsh;\
    dan da Danish;deu/ger de German;div dv Divehi;dzo dz Dzongkha;ell/gre el Greek;eng en English;\
    epo eo Esperanto;est et Estonian;eus/baq eu Basque;ewe ee Ewe;fao fo Faroese;fas/per fa Persian;\
    fij fj Fijian;fin fi Finnish;fra/fre fr French;fry fy Western Frisian;ful ff Fula;gla gd Scottish Gaelic;\
    gle ga Irish;glg gl Galician;glv gv Manx;grn gn Guarani;guj gu Gujarati;hat ht Haitian Creole;hau ha Hausa;\
    heb he Hebrew;her hz Herero;hin hi Hindi;hmo ho Hiri Motu;hrv hr Croatian;hun hu Hungarian;\
    hye/arm hy Armenian;ibo ig Igbo;ido io Ido;iii ii Sichuan Yi;iku iu Inuktitut;ile ie Interlingue;\
    ina ia Interlingua;ind id Indonesian;ipk ik Inupiaq;isl/ice is Icelandic;ita it Italian;jav jv Javanese;\
    jpn ja Japanese;kal kl Kalaallisut;kan kn Kannada;kas ks Kashmiri;kat/geo ka Georgian;kau kr Kanuri;\
    kaz kk Kazakh;khm km Khmer;kik ki Kikuyu;kin rw Kinyarwanda;kir ky Kyrgyz;kom kv Komi;kon kg Kongo;\
    kor ko Korean;kua kj Kuanyama;kur ku Kurdish;lao lo Lao;lat la Latin;lav lv Latvian;lim li Limburgish;\
    lin ln Lingala;lit lt Lithuanian;ltz lb Luxembourgish;lub lu Luba-Katanga;lug lg Ganda;mah mh Marshallese;\
    mal ml Malayalam;mar mr Marathi;mkd/mac mk Macedonian;mlg mg Malagasy;mlt mt Maltese;mon mn Mongolian;\
    mri/mao mi Māori;msa/may ms Malay;mya/bur my Burmese;nau na Nauru;nav nv Navajo;nbl nr South Ndebele;\
    nde nd North Ndebele;ndo ng Ndonga;nep ne Nepali;nld/dut nl Dutch;nno nn Norwegian Nynorsk;\
    nob nb Norwegian Bokmål;nor no Norwegian;nya ny Nyanja;oci oc Occitan;oji oj Ojibwa;ori or Odia;\
    orm om Oromo;oss os Ossetic;pan pa Punjabi;pli pi Pali;pol pl Polish;por pt Portuguese;pus ps Pashto;\
    que qu Quechua;roh rm Romansh;ron/rum ro Romanian;run rn Rundi;rus ru Russian;sag sg Sango;san sa Sanskrit;\
    sin si Sinhala;slk/slo sk Slovak;slv sl Slovenian;sme se Northern Sami;smo sm Samoan;sna sn Shona;\
    snd sd Sindhi;som so Somali;sot st Southern Sotho;spa es Spanish;sqi/alb sq Albanian;srd sc Sardinian;\
    srp sr Serbian;ssw ss Swati;sun su Sundanese;swa sw Swahili;swe sv Swedish;tah ty Tahitian;tam ta Tamil;\
    tat tt Tatar;tel te Telugu;tgk tg Tajik;tgl tl Filipino;tha th Thai;tir ti Tigrinya;ton to Tongan;\
    tsn tn Tswana;tso ts Tsonga;tuk tk Turkmen;tur tr Turkish;twi tw Akan;uig ug Uyghur;ukr uk Ukrainian;\
    urd ur Urdu;uzb uz Uzbek;ven ve Venda;vie vi Vietnamese;vol vo Volapük;wln wa Walloon;wol wo Wolof;\
    xho xh Xhosa;yid yi Yiddish;yor yo Yoruba;zha za Zhuang;zho/chi zh Chinese;zul zu Zulu";

/// Codes for no language or for several, which have no two-letter tag.
const OTHERS: [(&str, &str); 4] = [
    ("mis", "Other language"),
    ("mul", "Several languages"),
    ("qaa", "Original language"),
    ("zxx", "No speech"),
];

/// An entry of the table: the tag and the name.
fn entry(code: &str) -> Option<(&'static str, &'static str)> {
    LANGUAGES.split(';').find_map(|entry| {
        let (codes, rest) = entry.split_once(' ')?;
        let (tag, name) = rest.split_once(' ')?;
        (tag == code || codes.split('/').any(|known| known == code)).then_some((tag, name))
    })
}

/// The primary subtag of a code or tag in lower case, and the rest; `None` for undetermined
/// languages and for invalid tags.
fn parts(code: &str) -> Option<(String, &str)> {
    let (primary, rest) = code.split_at(code.find('-').unwrap_or(code.len()));
    let is_tag = (2..=8).contains(&primary.len()) && primary.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_rest = rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let primary = primary.to_ascii_lowercase();
    (is_tag && is_rest && primary != "und").then_some((primary, rest))
}

/// The RFC 5646 tag of a language (section 2.2.1): its shortest ISO 639 code. Accepts tags too, and
/// keeps their further subtags.
pub(crate) fn tag(code: &str) -> Option<String> {
    let (primary, rest) = parts(code)?;
    let shortest = entry(&primary).map_or(&primary[..], |(tag, _)| tag);
    Some(format!("{shortest}{rest}"))
}

/// The English name of a language, or its tag if it has no name.
pub(crate) fn name(code: &str) -> Option<String> {
    let (primary, rest) = parts(code)?;
    let other = || OTHERS.iter().find(|(code, _)| *code == primary).map(|(_, name)| *name);
    match entry(&primary).map(|(_, name)| name).or_else(other) {
        Some(name) if rest.is_empty() => Some(name.to_owned()),
        Some(name) => Some(format!("{name} ({})", &rest[1..])),
        None => tag(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_of_iso_639_2_code_is_the_shortest() {
        for (code, expected) in [
            ("deu", "de"),
            ("ger", "de"),
            ("fra", "fr"),
            ("fre", "fr"),
            ("nld", "nl"),
            ("dut", "nl"),
            ("zho", "zh"),
            ("chi", "zh"),
            ("ENG", "en"),
            ("en", "en"),
            ("gsw", "gsw"),
            ("mis", "mis"),
            ("mul", "mul"),
            ("qaa", "qaa"),
            ("pt-BR", "pt-BR"),
            ("por-BR", "pt-BR"),
        ] {
            assert_eq!(tag(code).as_deref(), Some(expected), "{code}");
        }
        for code in ["und", "", "d", "d1u", "deu,", "en\"x", "\u{e4}nd"] {
            assert_eq!((tag(code), name(code)), (None, None), "{code}");
        }
    }

    #[test]
    fn name_of_language_is_english_or_its_tag() {
        for (code, expected) in [
            ("eng", "English"),
            ("ger", "German"),
            ("nor", "Norwegian"),
            ("qaa", "Original language"),
            ("gsw", "gsw"),
            ("pt-BR", "Portuguese (BR)"),
        ] {
            assert_eq!(name(code).as_deref(), Some(expected), "{code}");
        }
    }

    #[test]
    fn table_has_each_code_once_and_names_without_quotes() {
        let mut codes: Vec<&str> = Vec::new();
        for entry in LANGUAGES.split(';') {
            let parts: Vec<&str> = entry.splitn(3, ' ').collect();
            let [all, tag, name] = parts[..] else { panic!("{entry}") };
            assert!(tag.len() == 2 && all.split('/').all(|code| code.len() == 3), "{entry}");
            assert!(!name.is_empty() && !name.contains(['"', '\n']), "{entry}");
            codes.extend(all.split('/').chain([tag]));
        }
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert!(codes.len() == count && count > 380, "{count}");
    }
}
