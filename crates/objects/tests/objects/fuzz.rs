//! Arbitrary input against the readers of files that others, or earlier runs, have written. The seeds lie in `__fuzz__`.

use millrace_objects::{UploadRecord, parse_profile};

#[test]
fn profile() {
    bolero::check!(name = "profile").with_iterations(3000).for_each(|input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        for name in ["default", "hotel", ""] {
            let values = parse_profile(&text, name);
            // A value occurs in the text, and is one line without blanks around it.
            for value in [&values.key_id, &values.secret, &values.token, &values.region, &values.endpoint] {
                let Some(value) = value else { continue };
                assert!(text.contains(value.as_str()) && !value.is_empty() && value.trim() == value);
                assert!(!value.contains('\n'));
            }
        }
    });
}

#[test]
fn upload_record() {
    bolero::check!(name = "upload_record").with_iterations(3000).for_each(|input: &[u8]| {
        if let Some(record) = UploadRecord::decode(input) {
            assert_eq!(UploadRecord::decode(&record.encode()), Some(record));
        }
    });
}
