//! Headers against the definitions of RFC 768, 791, 8200 and 1071, field by field.

use super::given::{LINK, TAGGED, flow};
use super::*;
use crate::wire::checksum::sum16;

#[test]
fn emit_ipv4_writes_fields_as_in_rfc_791_and_768() {
    let template = Template::new(&LINK, &flow("192.0.2.1:5004", "198.51.100.7:40000")).unwrap();
    let rtp = [0x80, 33, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
    let mut out = [0xee; MAX_HEADER_BYTES];
    let written = template.emit(&mut out, &rtp, sum16(b"payload"), 7, 0x0102);
    assert_eq!((written, template.header_bytes()), (54, 42));
    assert_eq!(out[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    assert_eq!(out[14..24], [0x45, 0xb8, 0, 20 + 8 + 12 + 7, 1, 2, 0x40, 0, 61, 17]);
    assert_eq!(out[26..34], [192, 0, 2, 1, 198, 51, 100, 7]);
    assert_eq!(out[34..40], [0x13, 0x8c, 0x9c, 0x40, 0, 8 + 12 + 7]);
    assert_eq!(out[42..54], rtp);
    assert!(out[54..].iter().all(|&b| b == 0xee), "nothing behind the header is touched");
    // A sum over a header with its checksum in place is 0xffff.
    assert_eq!(sum16(&out[14..34]), 0xffff);
    let pseudo = [&out[26..34], &[0, 17, 0, 27][..]].concat();
    assert_eq!(sum16(&[&pseudo, &out[34..54], b"payload"].concat()), 0xffff);
}

#[test]
fn emit_without_space_or_with_oversized_payload_writes_nothing() {
    let template = Template::new(&LINK, &flow("192.0.2.1:1", "198.51.100.7:2")).unwrap();
    let mut out = [7; 53];
    assert_eq!(template.emit(&mut out, &[0; 12], 0, 10, 0), 0);
    assert_eq!(template.emit_raw(&mut out[..41], 0, 10, 0), 0);
    assert_eq!(out, [7; 53]);
    let mut out = [7; MAX_HEADER_BYTES];
    assert_eq!(template.emit_raw(&mut out, 0, MAX_UDP_PAYLOAD_BYTES + 1, 0), 0);
    assert_eq!(template.emit(&mut out, &[0; 12], 0, usize::MAX, 0), 0);
    assert_eq!(template.emit(&mut out, &[0; 12], 0, MAX_UDP_PAYLOAD_BYTES - 11, 0), 0);
    assert_eq!(out, [7; MAX_HEADER_BYTES]);
    assert_eq!(template.emit(&mut out, &[0; 12], 0, MAX_UDP_PAYLOAD_BYTES - 12, 0), 54);
    assert_eq!(out[16..18], [0xff, 0xff]);
}

#[test]
fn addresses_must_be_of_one_family() {
    assert_eq!(Template::new(&LINK, &flow("192.0.2.1:1", "[2001:db8::1]:2")), None);
    let mapped = Template::new(&LINK, &flow("192.0.2.1:1", "[::ffff:198.51.100.7]:2"));
    assert_eq!(mapped, Template::new(&LINK, &flow("192.0.2.1:1", "198.51.100.7:2")));
    assert!(mapped.is_some());
}

#[test]
fn set_link_equals_template_built_with_new_link() {
    for (source, destination) in
        [("192.0.2.1:1", "198.51.100.7:2"), ("[2001:db8::1]:1", "[2001:db8:1::2]:65535")]
    {
        let flow = flow(source, destination);
        for (from, to) in [(LINK, TAGGED), (TAGGED, LINK), (LINK, LINK)] {
            let mut template = Template::new(&from, &flow).unwrap();
            template.set_link(&to);
            assert_eq!(template, Template::new(&to, &flow).unwrap());
        }
    }
}
