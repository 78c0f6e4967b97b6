//! The questions to the kernel, and its answers.

use std::io;
use std::os::fd::AsFd;

use super::{DeviceFeatures, Offloads, XdpFeatures, XskFeatures};
use crate::netlink::{Attributes, Family, Netlink, NetlinkMessage, NetlinkRequest, bytes_of, u32_of};
use crate::sys::ethtool;

/// `struct genlmsghdr`: command, version, reserved.
const GENERIC_HEADER_BYTES: usize = 4;

pub(super) fn features(interface: &str) -> io::Result<DeviceFeatures> {
    let mut route = Netlink::open(Family::Route)?;
    let mut features = None;
    route.ask(get_link(interface), |message| features = read_link(interface, message))?;
    let mut features = features.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    if let Ok(driver) = ethtool_driver(interface) {
        features.driver = Some(driver);
    }
    features.is_tx_no_linear = features.driver.as_deref() == Some("virtio_net");
    // Older kernels do not have these families, or not all of their queries; values that are not
    // reported stay unknown.
    let mut generic = Netlink::open(Family::Generic)?;
    if let Ok(family) = family_id(&mut generic, b"netdev\0") {
        let index = features.if_index;
        let _ = generic.ask(get_xdp(family, index), |message| read_xdp(message, &mut features));
        let mut queues = [0; 2];
        let listed =
            generic.dump(list_queues(family, index), |message| count_queue(message, index, &mut queues));
        // A device that is down lists none.
        if listed.is_ok() && queues != [0; 2] {
            (features.rx_queues, features.tx_queues) = (Some(queues[0]), Some(queues[1]));
        }
    }
    if let Ok(family) = family_id(&mut generic, b"ethtool\0") {
        let request = get_offloads(family, features.if_index);
        let _ = generic.ask(request, |message| features.offloads = read_offloads(message));
    }
    Ok(features)
}

fn ethtool_driver(interface: &str) -> io::Result<String> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    // A socket made here belongs to this thread's namespace, and so do the answers to its queries.
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    ethtool::driver(socket.as_fd(), interface)
}

const RTM_NEWLINK: u16 = 16;

fn get_link(interface: &str) -> NetlinkRequest {
    const RTM_GETLINK: u16 = 18;
    const IFLA_IFNAME: u16 = 3;
    let name = [interface.as_bytes(), b"\0"].concat();
    NetlinkRequest::new(RTM_GETLINK, 0, &[0; 16]).with(IFLA_IFNAME, &name)
}

fn read_link(interface: &str, message: NetlinkMessage<'_>) -> Option<DeviceFeatures> {
    const IFLA_ADDRESS: u16 = 1;
    const IFLA_MTU: u16 = 4;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_INFO_KIND: u16 = 1;
    const IFLA_NUM_TX_QUEUES: u16 = 31;
    const IFLA_NUM_RX_QUEUES: u16 = 32;
    const IFLA_CARRIER: u16 = 33;
    const IFLA_XDP: u16 = 43;
    const IFLA_XDP_ATTACHED: u16 = 2;
    if message.kind != RTM_NEWLINK {
        return None;
    }
    let attributes = Attributes::behind(message.body, 16);
    let number = |kind| attributes.get(kind).and_then(|value| u32_of(value, 0));
    let byte = |value: &[u8]| value.first().copied();
    let inner = |outer, kind| attributes.get(outer).and_then(|value| Attributes::new(value).get(kind));
    let kind = inner(IFLA_LINKINFO, IFLA_INFO_KIND).and_then(|kind| kind.split(|&byte| byte == 0).next());
    Some(DeviceFeatures {
        name: interface.to_owned(),
        if_index: u32_of(message.body, 4)?,
        mac: attributes.get(IFLA_ADDRESS).and_then(|value| value.try_into().ok()),
        mtu: number(IFLA_MTU)?,
        driver: kind.map(|kind| String::from_utf8_lossy(kind).into_owned()),
        is_up: u32_of(message.body, 8)? & libc::IFF_UP as u32 != 0,
        has_carrier: attributes.get(IFLA_CARRIER).and_then(byte).map(|carrier| carrier != 0),
        rx_queues: number(IFLA_NUM_RX_QUEUES),
        tx_queues: number(IFLA_NUM_TX_QUEUES),
        xdp_features: None,
        zc_max_segs: None,
        xsk_features: None,
        is_tx_no_linear: false,
        has_xdp_program: inner(IFLA_XDP, IFLA_XDP_ATTACHED).and_then(byte).map(|attached| attached != 0),
        offloads: None,
    })
}

/// The number that a family has on this machine.
fn family_id(socket: &mut Netlink, name: &[u8]) -> io::Result<u16> {
    const GENL_ID_CTRL: u16 = 16;
    const CTRL_CMD_GETFAMILY: u8 = 3;
    const CTRL_ATTR_FAMILY_ID: u16 = 1;
    const CTRL_ATTR_FAMILY_NAME: u16 = 2;
    let request = NetlinkRequest::new(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
        .with(CTRL_ATTR_FAMILY_NAME, name);
    let mut id = None;
    socket.ask(request, |message| {
        id = Attributes::behind(message.body, GENERIC_HEADER_BYTES)
            .get(CTRL_ATTR_FAMILY_ID)
            .and_then(|value| bytes_of(value, 0))
            .map(u16::from_ne_bytes);
    })?;
    id.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

fn get_xdp(family: u16, if_index: u32) -> NetlinkRequest {
    const NETDEV_CMD_DEV_GET: u8 = 1;
    const NETDEV_A_DEV_IFINDEX: u16 = 1;
    NetlinkRequest::new(family, 0, &[NETDEV_CMD_DEV_GET, 1, 0, 0]).with_u32(NETDEV_A_DEV_IFINDEX, if_index)
}

fn read_xdp(message: NetlinkMessage<'_>, features: &mut DeviceFeatures) {
    const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
    const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
    const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
    let attributes = Attributes::behind(message.body, GENERIC_HEADER_BYTES);
    let bits = |kind| attributes.get(kind).and_then(|value| bytes_of(value, 0)).map(u64::from_ne_bytes);
    features.xdp_features = bits(NETDEV_A_DEV_XDP_FEATURES).map(XdpFeatures);
    features.zc_max_segs = attributes.get(NETDEV_A_DEV_XDP_ZC_MAX_SEGS).and_then(|value| u32_of(value, 0));
    features.xsk_features = bits(NETDEV_A_DEV_XSK_FEATURES).map(XskFeatures);
}

const NETDEV_A_QUEUE_IFINDEX: u16 = 2;

fn list_queues(family: u16, if_index: u32) -> NetlinkRequest {
    const NETDEV_CMD_QUEUE_GET: u8 = 10;
    NetlinkRequest::new(family, 0, &[NETDEV_CMD_QUEUE_GET, 1, 0, 0])
        .with_u32(NETDEV_A_QUEUE_IFINDEX, if_index)
}

/// Counts a queue: `counts` of those that receive and those that send.
fn count_queue(message: NetlinkMessage<'_>, if_index: u32, counts: &mut [u32; 2]) {
    const NETDEV_A_QUEUE_TYPE: u16 = 3;
    let attributes = Attributes::behind(message.body, GENERIC_HEADER_BYTES);
    let number = |kind| attributes.get(kind).and_then(|value| u32_of(value, 0));
    if number(NETDEV_A_QUEUE_IFINDEX) == Some(if_index)
        && let Some(count) = number(NETDEV_A_QUEUE_TYPE).and_then(|kind| counts.get_mut(kind as usize))
    {
        *count = count.saturating_add(1);
    }
}

fn get_offloads(family: u16, if_index: u32) -> NetlinkRequest {
    const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
    const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
    const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
    NetlinkRequest::new(family, 0, &[ETHTOOL_MSG_FEATURES_GET, 1, 0, 0])
        .with_nested(ETHTOOL_A_FEATURES_HEADER, |r| r.with_u32(ETHTOOL_A_HEADER_DEV_INDEX, if_index))
}

/// Bits that are set have an entry with their name.
fn read_offloads(message: NetlinkMessage<'_>) -> Option<Offloads> {
    const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
    const ETHTOOL_A_BITSET_BITS: u16 = 3;
    const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
    let active = Attributes::behind(message.body, GENERIC_HEADER_BYTES).get(ETHTOOL_A_FEATURES_ACTIVE)?;
    let mut offloads = Offloads::default();
    for (_, bit) in Attributes::new(Attributes::new(active).get(ETHTOOL_A_BITSET_BITS)?) {
        let Some(name) = Attributes::new(bit).get(ETHTOOL_A_BITSET_BIT_NAME) else { continue };
        match name.split(|&byte| byte == 0).next() {
            Some(b"tx-tcp-segmentation") => offloads.tso = true,
            Some(b"tx-generic-segmentation") => offloads.gso = true,
            Some(b"tx-udp-segmentation") => offloads.udp_segmentation = true,
            Some(b"tx-checksum-ip-generic" | b"tx-checksum-ipv4") => offloads.checksum = true,
            _ => {}
        }
    }
    Some(offloads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn feature_parsers_never_panic_on_any_message(kind in prop_oneof![Just(16u16), any::<u16>()], body in proptest::collection::vec(any::<u8>(), 0..160)) {
            let message = NetlinkMessage { kind, sequence: 1, body: &body };
            if let Some(mut features) = read_link("x", message) {
                read_xdp(message, &mut features);
                prop_assert!(!features.to_string().is_empty());
            }
            let mut counts = [0; 2];
            count_queue(message, 0, &mut counts);
            let _ = read_offloads(message);
        }
    }
}
