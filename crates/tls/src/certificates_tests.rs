use std::fs;

use super::*;
use crate::made::{TestCertificate, certificate};

fn read(files: &TestCertificate) -> Result<Arc<Certificates>, CertificateError> {
    let [certificate, key] = files.files();
    Certificates::read(&certificate, &key, &files.totals)
}

fn current(certificates: &Certificates) -> Vec<u8> {
    certificates.current.read().unwrap().cert[0].to_vec()
}

#[test]
fn reload_uses_new_certificate_and_ignores_broken_one() {
    let (files, first, second) = (TestCertificate::new(), certificate(), certificate());
    files.write(&first);
    let certificates = read(&files).unwrap();
    assert_eq!(current(&certificates), first.cert.der().to_vec());
    files.write(&second);
    certificates.reload().unwrap();
    assert_eq!(current(&certificates), second.cert.der().to_vec());
    // The key of another, half a file, none.
    fs::write(files.at("key.pem"), first.signing_key.serialize_pem()).unwrap();
    let error = certificates.reload().unwrap_err().to_string();
    assert!(error.contains("do not match") && error.contains("key.pem"), "{error}");
    files.write(&second);
    let whole = fs::read(files.at("cert.pem")).unwrap();
    fs::write(files.at("cert.pem"), &whole[..whole.len() / 2]).unwrap();
    assert!(certificates.reload().unwrap_err().to_string().contains("cert.pem"));
    fs::remove_file(files.at("cert.pem")).unwrap();
    assert!(certificates.reload().unwrap_err().to_string().contains("No such file"));
    assert_eq!(current(&certificates), second.cert.der().to_vec());
    let counted = files.totals.read();
    assert_eq!((counted.certificates_read, counted.certificates_refused), (2, 3));
}

#[test]
fn read_of_invalid_certificate_files_names_the_fault() {
    let files = TestCertificate::new();
    assert!(read(&files).unwrap_err().to_string().contains("cert.pem: No such file"));
    files.write(&certificate());
    for (file, content, part) in [
        ("cert.pem", &b""[..], "contains no certificate"),
        ("cert.pem", b"\x30\x82\x01\x00", "contains no certificate"),
        ("cert.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "do not match"),
        ("cert.pem", b"-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n", "not PEM"),
        ("key.pem", b"", "private key"),
        ("key.pem", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "do not match"),
        ("key.pem", &vec![b'x'; MAX_PEM_BYTES as usize + 1], "longer than any"),
    ] {
        files.write(&certificate());
        fs::write(files.at(file), content).unwrap();
        let error = read(&files).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(file), "{file} {part}: {error}");
    }
}

#[test]
fn files_are_read_when_they_have_changed_and_stay_as_they_are() {
    let of = |time: i64| Some([(1, 1, 1, time, 0), (1, 2, 1, 0, 0)]);
    let mut files = Followed::from(of(1));
    assert!(!files.is_due(of(1), false));
    // The certificate first, its key a look later: read once.
    assert!(!files.is_due(of(2), false));
    assert!(!files.is_due(of(3), false));
    assert!(files.is_due(of(3), false));
    assert!(!files.is_due(of(3), false));
    // Missing: tried and reported once.
    assert!(!files.is_due(None, false));
    assert!(files.is_due(None, false));
    assert!(!files.is_due(None, false));
    // Asked for: at once, changed or not.
    assert!(files.is_due(None, true));
    assert!(files.is_due(of(4), true));
    assert!(!files.is_due(of(4), false));
}
