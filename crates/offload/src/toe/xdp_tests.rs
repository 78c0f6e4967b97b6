//! Settings that are refused before anything is touched.

use std::net::IpAddr;

use super::*;

fn features() -> DeviceFeatures {
    let mut features = DeviceFeatures::of("lo").unwrap();
    features.name = "eth7".to_owned();
    features.mac = Some([2, 0, 0, 0, 0, 7]);
    (features.mtu, features.rx_queues) = (1500, Some(1));
    features
}

fn settings() -> ip::Settings {
    ip::Settings::new(ip::LinkLayer::Ethernet { mac: [2, 0, 0, 0, 0, 7], vlan: None }, [1, 2])
        .with("10.0.0.1".parse::<IpAddr>().unwrap(), 24)
}

#[test]
fn settings_that_do_not_fit_the_interface_say_what_to_do() {
    assert!(check(&features(), &settings()).is_ok());
    let refused = |features: DeviceFeatures, settings: ip::Settings, words: [&str; 2]| {
        let error = check(&features, &settings).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(text.contains("eth7") && words.iter().all(|word| text.contains(word)), "{text}");
    };
    let other = ip::LinkLayer::Ethernet { mac: [2, 0, 0, 0, 0, 8], vlan: None };
    for link in [other, ip::LinkLayer::Ip] {
        refused(features(), ip::Settings { link, ..settings() }, ["on_ethernet", "link"]);
    }
    refused(features(), ip::Settings { mtu: 1501, ..settings() }, ["1501", "1500"]);
    let jumbo = DeviceFeatures { mtu: 9000, ..features() };
    refused(jumbo, ip::Settings { mtu: 9000, ..settings() }, ["9000", "3822"]);
    refused(DeviceFeatures { mac: None, ..features() }, settings(), ["no Ethernet", "TUN"]);
}

#[test]
fn missing_rights_lead_to_a_tun_device() {
    let denied = || io::Error::from_raw_os_error(libc::EPERM);
    let call = XdpError::Call {
        interface: "eth7".into(),
        queue: 0,
        what: "make an AF_XDP socket",
        source: denied(),
        remedy: "run it as root",
    };
    let error = from_xdp(call);
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let text = error.to_string();
    assert!(
        text.contains("eth7") && text.contains("run it as root") && text.contains("TUN device"),
        "{text}"
    );
}
