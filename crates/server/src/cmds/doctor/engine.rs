//! Whether a TCP offload engine (`millrace engine`, `serve --tcp engine`) can run here: the
//! operations that the kernel permits this process, and the interfaces that suit an engine.

use std::io;

use millrace_core::limits::MAX_XDP_RAW_QUEUES;
use millrace_offload::egress_select::measure::TargetInterface;
use millrace_offload::features::{DeviceFeatures, XdpFeatures};
use millrace_offload::probe::{Finding, Survey};
use millrace_offload::toe::XdpDevice;
use millrace_offload::xdp::steer::Steering;
use millrace_offload::xdp::{XdpQueues, XdpRawConfig};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketType};
use serde_json::{Value, json};

use super::checks::{finding, lockable_bytes};

/// What there is instead of an engine.
const INSTEAD: &str = "without an offload engine the kernel's TCP carries all connections";

/// The section of the report.
pub(super) struct OffloadEngine {
    /// Sockets and the program of AF_XDP; TUN devices.
    needs: [Finding; 2],
    places: Vec<EngineInterface>,
}

/// An interface that an engine can be at, or why it cannot.
#[derive(Debug, PartialEq, Eq)]
struct EngineInterface {
    interface: String,
    kind: &'static str,
    detail: String,
    /// What to do first; `None`: nothing.
    remedy: Option<String>,
}

/// What this process may do.
#[derive(Clone, Copy)]
struct Rights {
    has_xdp: bool,
    has_tun: bool,
    /// Memory that it may lock; `None`: all.
    lockable_bytes: Option<u64>,
}

impl OffloadEngine {
    /// Asks the kernel. No interface is changed, and no packet is sent.
    pub(super) fn look(targets: &[TargetInterface]) -> Self {
        let needs = [af_xdp(), tun()];
        let [has_xdp, has_tun] = [needs[0].works, needs[1].works];
        let rights = Rights { has_xdp, has_tun, lockable_bytes: lockable_bytes() };
        let place = |target: &TargetInterface| {
            // One may disappear between the list and the question.
            let device = DeviceFeatures::of(&target.name).ok()?;
            EngineInterface::of(&device, target.is_ethernet, rights)
        };
        Self { needs, places: targets.iter().filter_map(place).collect() }
    }

    fn works(&self) -> bool {
        self.places.iter().any(EngineInterface::works)
    }

    pub(super) fn text(&self) -> String {
        let names: Vec<&str> =
            self.places.iter().filter(|place| place.works()).map(|place| place.interface.as_str()).collect();
        let verdict = match names[..] {
            [] => format!("at no interface now; {INSTEAD}"),
            _ => format!("at {}", names.join(", ")),
        };
        let mut text = format!("\nTCP offload engine (millrace engine, serve --tcp engine): {verdict}\n");
        text.push_str(&Survey { findings: self.needs.to_vec() }.to_string());
        for EngineInterface { interface, kind, detail, remedy } in &self.places {
            let mark = if remedy.is_none() { "yes" } else { "no " };
            text.push_str(&format!("  {interface}  {mark}  {kind}: {detail}\n"));
            if let Some(remedy) = remedy {
                text.push_str(&format!("  -> {remedy}\n"));
            }
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let place = |place: &EngineInterface| {
            let EngineInterface { interface, kind, detail, remedy } = place;
            json!({ "name": interface, "works": place.works(), "kind": kind, "detail": detail, "remedy": remedy })
        };
        json!({
            "works": self.works(),
            "instead": (!self.works()).then_some(INSTEAD),
            "needs": self.needs.iter().map(super::finding_json).collect::<Vec<_>>(),
            "interfaces": self.places.iter().map(place).collect::<Vec<_>>(),
        })
    }
}

impl EngineInterface {
    /// `None` if an engine makes no sense there: the loopback device, tunnels.
    fn of(device: &DeviceFeatures, is_ethernet: bool, rights: Rights) -> Option<Self> {
        let (kind, (detail, remedy)) = match (is_ethernet, device.driver.as_deref()) {
            (true, _) => ("Ethernet", ethernet(device, rights)),
            (false, Some("tun")) => ("TUN", behind_tun(device, rights)),
            _ => return None,
        };
        Some(Self { interface: device.name.clone(), kind, detail, remedy })
    }

    fn works(&self) -> bool {
        self.remedy.is_none()
    }
}

/// Returns whether an engine can share an Ethernet interface with the kernel: the findings, and a
/// remedy if it cannot.
fn ethernet(device: &DeviceFeatures, rights: Rights) -> (String, Option<String>) {
    let name = &device.name;
    let queues = device.rx_queues.unwrap_or(1);
    let bytes = XdpQueues::memory_bytes(&XdpRawConfig::new(name), queues) as u64;
    if device.mac.is_none_or(|mac| mac == [0; 6]) {
        return ("it has no Ethernet address".to_owned(), Some("choose another interface".to_owned()));
    }
    if !device.is_up {
        return ("it is down".to_owned(), Some(format!("ip link set {name} up")));
    }
    if device.has_xdp_program == Some(true) {
        let remedy = format!(
            "millrace engine status shows a running engine; ip link set dev {name} xdp off removes a program that was left behind"
        );
        return ("another XDP program is there".to_owned(), Some(remedy));
    }
    if queues > MAX_XDP_RAW_QUEUES {
        let found =
            format!("it has {queues} receive queues, and an engine takes {MAX_XDP_RAW_QUEUES} at most");
        return (found, Some(format!("ethtool -L {name} combined {MAX_XDP_RAW_QUEUES}")));
    }
    if let Some(may) = rights.lockable_bytes.filter(|&may| rights.has_xdp && may < bytes) {
        let found = format!("{} MiB of memory would be locked, and {} KiB may be", bytes >> 20, may >> 10);
        let remedy = "ulimit -l unlimited; in a systemd unit: LimitMEMLOCK=infinity; or grant CAP_IPC_LOCK";
        return (found, Some(remedy.to_owned()));
    }
    let mode = match device.xdp_features.map(XdpFeatures::runs_programs) {
        Some(true) => "AF_XDP in the driver",
        Some(false) => "AF_XDP in generic mode, since the driver has no XDP",
        None => "AF_XDP, in the driver or not (Linux 6.3 can say)",
    };
    let how =
        if device.xdp_features.is_some_and(XdpFeatures::is_zero_copy) { "zero copy" } else { "by copies" };
    let found = format!(
        "{mode}, {how}; {queues} of {MAX_XDP_RAW_QUEUES} receive queues, {} MiB locked, packets of up to {} bytes",
        bytes >> 20,
        device.mtu.min(XdpDevice::LONGEST_PACKET)
    );
    (found, (!rights.has_xdp).then(|| "engine-xdp above, or a TUN device".to_owned()))
}

/// The same behind a TUN device.
fn behind_tun(device: &DeviceFeatures, rights: Rights) -> (String, Option<String>) {
    let name = &device.name;
    if !device.is_up {
        return ("it is down".to_owned(), Some(format!("ip link set {name} up")));
    }
    // It has a carrier as long as a program has it open.
    if device.has_carrier == Some(true) {
        let remedy =
            format!("end the program that has it, or make another one: ip tuntap add dev {name}b mode tun");
        return ("a program has it open".to_owned(), Some(remedy));
    }
    let found = format!("the kernel is at the other end; packets of up to {} bytes", device.mtu);
    (found, (!rights.has_tun).then(|| "engine-tun above".to_owned()))
}

/// Tries the first steps of an engine at an Ethernet interface.
fn af_xdp() -> Finding {
    let socket = rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None)
        .map_err(|errno| format!("no AF_XDP socket: {}", io::Error::from(errno)));
    let tried = socket.and_then(|_| Steering::try_out().map_err(|error| error.to_string()));
    finding(
        "engine-xdp",
        tried.map(|()| "a socket and the steering program can be made".to_owned()),
        "an engine at an Ethernet interface, which it shares with the kernel",
        "run as root, or: setcap cap_net_raw,cap_bpf,cap_net_admin,cap_ipc_lock+ep $(command -v millrace); in a systemd unit: \
         AmbientCapabilities=CAP_NET_RAW CAP_BPF CAP_NET_ADMIN CAP_IPC_LOCK. The kernel needs CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL. Or \
         take a TUN device, for which CAP_NET_ADMIN is enough",
    )
}

/// Opens what makes TUN devices, and makes none.
fn tun() -> Finding {
    let opened = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    finding(
        "engine-tun",
        match opened {
            Ok(_) => Ok("/dev/net/tun can be opened".to_owned()),
            Err(errno) => Err(format!("/dev/net/tun: {}", io::Error::from(errno))),
        },
        "an engine behind a TUN device: ip tuntap add dev toe0 mode tun user $USER, an address of a small subnet of its own, up",
        "modprobe tun; in a container: give it the device /dev/net/tun",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHTS: Rights = Rights { has_xdp: true, has_tun: true, lockable_bytes: None };

    /// An interface with everything, changed.
    fn place(
        is_ethernet: bool,
        rights: Rights,
        change: impl FnOnce(&mut DeviceFeatures),
    ) -> Option<EngineInterface> {
        let mut device = DeviceFeatures {
            name: "eth9".into(),
            mac: Some([2; 6]),
            mtu: 9000,
            driver: Some(if is_ethernet { "ice" } else { "tun" }.into()),
            is_up: true,
            has_carrier: Some(is_ethernet),
            rx_queues: Some(4),
            xdp_features: Some(XdpFeatures(0xf)),
            has_xdp_program: Some(false),
            ..DeviceFeatures::of("lo").unwrap()
        };
        change(&mut device);
        EngineInterface::of(&device, is_ethernet, rights)
    }

    #[test]
    fn place_of_suitable_interface_describes_engine_mode() {
        let fits = place(true, RIGHTS, |_| ()).unwrap();
        assert!(fits.works(), "{fits:?}");
        for part in ["AF_XDP in the driver", "4 of 64 receive queues", "up to 3822 bytes", " MiB locked"] {
            assert!(fits.detail.contains(part), "{part}: {}", fits.detail);
        }
        let generic = place(true, RIGHTS, |device| device.xdp_features = Some(XdpFeatures(0))).unwrap();
        assert!(generic.works() && generic.detail.contains("generic mode"), "{generic:?}");
        let tun = place(false, RIGHTS, |_| ()).unwrap();
        assert!(tun.works() && tun.detail.contains("9000 bytes"), "{tun:?}");
        for other in [Some("wireguard"), None] {
            assert_eq!(place(false, RIGHTS, |device| device.driver = other.map(str::to_owned)), None);
        }
    }

    #[test]
    fn place_of_unsuitable_interface_reports_cause_and_remedy() {
        type Change = fn(&mut DeviceFeatures);
        let few = Rights { lockable_bytes: Some(64 << 10), ..RIGHTS };
        let none = Rights { has_xdp: false, has_tun: false, ..RIGHTS };
        let cases: [(bool, Rights, Change, [&str; 2]); 8] = [
            (true, RIGHTS, |device| device.mac = Some([0; 6]), ["no Ethernet address", "another interface"]),
            (true, RIGHTS, |device| device.is_up = false, ["down", "ip link set eth9 up"]),
            (
                true,
                RIGHTS,
                |device| device.has_xdp_program = Some(true),
                ["another XDP program", "engine status"],
            ),
            (
                true,
                RIGHTS,
                |device| device.rx_queues = Some(65),
                ["65 receive queues", "ethtool -L eth9 combined 64"],
            ),
            (true, few, |_| (), ["64 KiB may be", "LimitMEMLOCK"]),
            (true, none, |_| (), ["AF_XDP in the driver", "engine-xdp above"]),
            (false, RIGHTS, |device| device.has_carrier = Some(true), ["has it open", "ip tuntap add"]),
            (false, none, |_| (), ["the kernel is at the other end", "engine-tun above"]),
        ];
        for (is_ethernet, rights, change, [why, what]) in cases {
            let place = place(is_ethernet, rights, change).unwrap();
            let remedy = place.remedy.as_deref().unwrap_or_else(|| panic!("it works: {place:?}"));
            assert!(place.detail.contains(why) && remedy.contains(what), "{why}, {what}: {place:?}");
        }
    }

    #[test]
    fn offload_engine_section_lists_interfaces_or_fallback() {
        let finding = finding("engine-xdp", Ok("tried".into()), "an engine", "nothing");
        let of = |places| OffloadEngine { needs: [finding.clone(), finding.clone()], places };
        let [up, down] =
            [true, false].map(|is_up| place(true, RIGHTS, |device| device.is_up = is_up).unwrap());
        let some = of(vec![down, up]);
        let text = some.text();
        for part in [
            "serve --tcp engine): at eth9\n",
            "  eth9  no   Ethernet: it is down\n  -> ip link set eth9 up\n",
        ] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        let json = some.json();
        assert_eq!((&json["works"], &json["instead"]), (&true.into(), &Value::Null));
        assert_eq!(json["interfaces"][0]["remedy"], "ip link set eth9 up");
        assert_eq!(
            (&json["interfaces"][1]["works"], &json["interfaces"][1]["remedy"]),
            (&true.into(), &Value::Null)
        );
        let none = of(Vec::new());
        assert!(none.text().contains("at no interface now; without an offload engine the kernel's TCP"));
        assert_eq!((&none.json()["works"], &none.json()["instead"]), (&false.into(), &INSTEAD.into()));
    }
}
