//! Exchanges with the real kernel, in network namespaces of their own.

use std::net::IpAddr;

use ferroute_netlink::{
    Batch, Consistency, Error, Message, Oversize, Protocol, Refusal, Request, Socket, Subscription, Wake, flags,
    nfnetlink,
};
use ferroute_testing::NetNs;

// Kinds and attributes of include/uapi/linux/netfilter/nf_tables.h and rtnetlink.h, as far as these tests use them.
const NEW_TABLE: u16 = nfnetlink::kind(nfnetlink::NFTABLES, 0);
const GET_TABLE: u16 = nfnetlink::kind(nfnetlink::NFTABLES, 1);
const NEW_CHAIN: u16 = nfnetlink::kind(nfnetlink::NFTABLES, 3);
const GET_CHAIN: u16 = nfnetlink::kind(nfnetlink::NFTABLES, 4);
const DELETE_CHAIN: u16 = nfnetlink::kind(nfnetlink::NFTABLES, 5);
const GET_GENERATION: u16 = nfnetlink::kind(nfnetlink::NFTABLES, 16);
const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_USERDATA: u16 = 12;
const GENERATION_ID: u16 = 1;
const INET: u8 = libc::NFPROTO_INET as u8;

fn begin(batch: &mut Batch) {
    batch.message(nfnetlink::BATCH_BEGIN, 0, &nfnetlink::header(0, 0, nfnetlink::NFTABLES.into()));
}

fn end(batch: &mut Batch) {
    batch.message(nfnetlink::BATCH_END, 0, &nfnetlink::header(0, 0, nfnetlink::NFTABLES.into()));
}

fn table(batch: &mut Batch, name: &str, flags: u16) {
    batch.message(NEW_TABLE, flags, &nfnetlink::header(INET, 0, 0)).put_str(TABLE, name);
}

fn chain(batch: &mut Batch, kind: u16, flags: u16, table: &str, name: &str) {
    let mut message = batch.message(kind, flags, &nfnetlink::header(INET, 0, 0));
    message.put_str(TABLE, table);
    message.put_str(CHAIN_NAME, name);
}

/// A transaction that makes a table and `count` chains.
fn chains(name: &str, count: usize) -> Batch {
    let mut batch = Batch::new();
    begin(&mut batch);
    table(&mut batch, name, flags::CREATE);
    for number in 0..count {
        chain(&mut batch, NEW_CHAIN, flags::CREATE, name, &format!("chain-{number}"));
    }
    table(&mut batch, name, flags::ACK);
    end(&mut batch);
    batch
}

fn netfilter(namespace: &NetNs) -> Socket {
    namespace.run(|| Socket::open(Protocol::Netfilter).expect("the kernel has netfilter"))
}

fn count(socket: &mut Socket, kind: u16) -> usize {
    let mut request = Request::new(kind, 0, &nfnetlink::header(INET, 0, 0));
    socket.collect::<_, Error>(&mut request, |_| Ok(Some(()))).expect("objects can be listed").len()
}

fn generation(socket: &mut Socket) -> u32 {
    let mut request = Request::new(GET_GENERATION, 0, &nfnetlink::header(0, 0, 0));
    let read = |message: Message<'_>| -> Result<u32, Error> {
        let (_, mut attributes) = message.split_header::<4>()?;
        let id = attributes.find(|attribute| attribute.is_ok_and(|attribute| attribute.kind == GENERATION_ID));
        Ok(id.ok_or(message.missing(GENERATION_ID))??.u32_be()?)
    };
    socket.get(&mut request, read).expect("the kernel has nf_tables").expect("the kernel tells its generation")
}

#[test]
fn a_transaction_is_applied_and_its_effect_can_be_listed() {
    let namespace = NetNs::new();
    let mut socket = netfilter(&namespace);
    let before = generation(&mut socket);
    assert!(socket.send_batch(&mut chains("t", 2)).unwrap().is_empty());
    assert_eq!(generation(&mut socket), before + 1);
    let listed = namespace.command("nft", &["list", "table", "inet", "t"]);
    assert!(listed.contains("chain chain-0") && listed.contains("chain chain-1"), "{listed}");
    assert_eq!((count(&mut socket, GET_TABLE), count(&mut socket, GET_CHAIN)), (1, 2));
}

#[test]
fn each_refused_message_is_reported_with_its_place_and_nothing_is_applied() {
    let namespace = NetNs::new();
    let mut socket = netfilter(&namespace);
    let mut batch = Batch::new();
    begin(&mut batch);
    table(&mut batch, "t", flags::CREATE);
    chain(&mut batch, DELETE_CHAIN, 0, "t", "nowhere");
    table(&mut batch, "t", flags::CREATE | flags::EXCLUSIVE | flags::ACK);
    end(&mut batch);
    let refusals = socket.send_batch(&mut batch).unwrap();
    // The chain's name stands behind 16 bytes of header, 4 of netfilter's header, and the table's name with 8.
    let missing = Refusal { index: 2, kind: DELETE_CHAIN, errno: libc::ENOENT, offset: Some(28), text: None };
    let there = Refusal { index: 3, kind: NEW_TABLE, errno: libc::EEXIST, offset: Some(20), text: None };
    assert_eq!(refusals.as_slice(), [missing, there]);
    assert!(refusals.as_slice()[0].is_not_found() && refusals.as_slice()[1].is_exists());
    assert!(refusals.into_result().unwrap_err().is_not_found());
    assert_eq!(count(&mut socket, GET_TABLE), 0);
}

#[test]
fn a_transaction_made_for_an_older_generation_is_stale() {
    let namespace = NetNs::new();
    let mut socket = netfilter(&namespace);
    let seen = generation(&mut socket);
    let mut batch = Batch::new();
    let header = nfnetlink::header(0, 0, nfnetlink::NFTABLES.into());
    batch.message(nfnetlink::BATCH_BEGIN, 0, &header).put_u32_be(GENERATION_ID, seen);
    table(&mut batch, "t", flags::CREATE | flags::ACK);
    end(&mut batch);
    namespace.command("nft", &["add", "table", "inet", "other"]);
    assert!(socket.send_batch(&mut batch).unwrap().into_result().unwrap_err().is_stale());
    assert_eq!(count(&mut socket, GET_TABLE), 1);
}

#[test]
fn a_batch_that_is_not_answered_counts_as_failed() {
    let mut socket = netfilter(&NetNs::new());
    let mut batch = Batch::new();
    // Without netfilter's header the kernel drops it.
    drop(batch.message(nfnetlink::BATCH_BEGIN, 0, &[]));
    let error = socket.send_batch(&mut batch).unwrap_err();
    assert!(matches!(error, Error::UnansweredBatch { messages: 1 }), "{error}");
    assert_eq!(count(&mut socket, GET_TABLE), 0);
}

#[test]
fn messages_that_are_no_transaction_are_obeyed_one_by_one_and_can_be_sent_again() {
    let namespace = NetNs::new();
    let mut socket = namespace.run(|| Socket::open(Protocol::Route).unwrap());
    let mut batch = Batch::new();
    // RTM_SETLINK: down with device 900, which is not there, and with `lo`.
    for (device, change) in [(900_i32, libc::IFF_UP), (1, libc::IFF_UP)] {
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&device.to_ne_bytes());
        header[12..].copy_from_slice(&change.to_ne_bytes());
        drop(batch.message(libc::RTM_SETLINK, 0, &header));
    }
    for _ in 0..2 {
        let refusals = socket.send_batch(&mut batch).unwrap();
        let refused: Vec<_> = refusals.as_slice().iter().map(|refusal| (refusal.index, refusal.errno)).collect();
        assert_eq!(refused, [(0, libc::ENODEV)]);
        assert!(!namespace.command("ip", &["link", "show", "lo"]).contains(",UP"));
    }
}

#[test]
fn a_transaction_without_an_end_is_answered_but_not_applied() {
    let mut socket = netfilter(&NetNs::new());
    let mut batch = Batch::new();
    begin(&mut batch);
    table(&mut batch, "t", flags::CREATE | flags::ACK);
    assert!(socket.send_batch(&mut batch).unwrap().is_empty());
    assert_eq!(count(&mut socket, GET_TABLE), 0);
}

#[test]
fn nothing_to_send_is_done_at_once() {
    assert!(netfilter(&NetNs::new()).send_batch(&mut Batch::new()).unwrap().is_empty());
}

#[test]
fn a_batch_of_megabytes_goes_out_in_one_piece() {
    let mut socket = netfilter(&NetNs::new());
    let mut batch = Batch::new();
    begin(&mut batch);
    table(&mut batch, "t", flags::CREATE);
    for number in 0..20_000 {
        let mut message = batch.message(NEW_CHAIN, flags::CREATE, &nfnetlink::header(INET, 0, 0));
        message.put_str(TABLE, "t");
        message.put_str(CHAIN_NAME, &format!("chain-{number}"));
        message.put_bytes(CHAIN_USERDATA, &[0; 240]);
    }
    table(&mut batch, "t", flags::ACK);
    end(&mut batch);
    assert!(batch.byte_length() > 5 << 20, "{}", batch.byte_length());
    assert!(socket.send_batch(&mut batch).unwrap().is_empty());
    assert_eq!(count(&mut socket, GET_CHAIN), 20_000);
}

#[test]
fn a_batch_of_any_size_around_that_of_the_send_buffer_goes_out() {
    let namespace = NetNs::new();
    let limit: usize = std::fs::read_to_string("/proc/sys/net/core/wmem_default").unwrap().trim().parse().unwrap();
    for size in (limit - 64..=limit + 8).step_by(4) {
        let mut socket = namespace.run(|| Socket::open(Protocol::Route).unwrap());
        let mut batch = Batch::new();
        drop(batch.message(libc::NLMSG_NOOP as u16, 0, &vec![0; size - 16]));
        assert_eq!(batch.byte_length(), size);
        assert!(socket.send_batch(&mut batch).unwrap().is_empty());
    }
}

#[test]
fn more_refusals_than_fit_are_a_failure_and_the_socket_goes_on() {
    let mut socket = netfilter(&NetNs::new());
    assert!(socket.send_batch(&mut chains("t", 0)).unwrap().is_empty());
    let mut batch = Batch::new();
    begin(&mut batch);
    for _ in 0..100_000 {
        chain(&mut batch, DELETE_CHAIN, flags::ACK, "t", "nowhere");
    }
    end(&mut batch);
    let refusals = socket.send_batch(&mut batch).unwrap();
    assert!(refusals.is_overrun() && refusals.as_slice().len() > 3_000, "{}", refusals.as_slice().len());
    assert!(refusals.as_slice().iter().enumerate().all(|(place, refusal)| refusal.index == place + 1));
    assert!(refusals.into_result().unwrap_err().is_not_found());
    assert_eq!(count(&mut socket, GET_TABLE), 1);
}

#[test]
fn what_does_not_fit_its_frame_is_not_sent() {
    let mut socket = netfilter(&NetNs::new());
    let mut batch = chains("t", 1);
    batch.message(NEW_CHAIN, 0, &[0; 4]).put_bytes(CHAIN_USERDATA, &[0; 70_000]);
    let error = socket.send_batch(&mut batch).unwrap_err();
    assert!(matches!(error, Error::Oversize(Oversize::Attribute { message: 5, .. })), "{error}");
    assert_eq!(count(&mut socket, GET_TABLE), 0);
}

#[test]
fn a_list_that_changes_while_it_is_read_is_read_again() {
    let namespace = NetNs::new();
    let (mut reader, mut writer) = (netfilter(&namespace), netfilter(&namespace));
    assert!(writer.send_batch(&mut chains("t", 2_000)).unwrap().is_empty());
    let mut request = Request::new(GET_CHAIN, 0, &nfnetlink::header(INET, 0, 0));
    let mut disturbed = false;
    let names = reader.collect::<_, Error>(&mut request, |_| {
        if !disturbed {
            assert!(writer.send_batch(&mut chains("u", 1)).unwrap().is_empty());
            disturbed = true;
        }
        Ok(Some(()))
    });
    assert_eq!(names.unwrap().len(), 2_001);
}

#[test]
fn a_list_that_never_holds_still_is_an_error_after_some_tries() {
    let namespace = NetNs::new();
    let (mut reader, mut writer) = (netfilter(&namespace), netfilter(&namespace));
    assert!(writer.send_batch(&mut chains("t", 2_000)).unwrap().is_empty());
    let mut request = Request::new(GET_CHAIN, 0, &nfnetlink::header(INET, 0, 0));
    let mut seen = 0;
    let result = reader.collect::<(), Error>(&mut request, |_| {
        seen += 1;
        if seen % 1_000 == 0 {
            assert!(writer.send_batch(&mut chains(&format!("u{seen}"), 0)).unwrap().is_empty());
        }
        Ok(None)
    });
    assert!(matches!(result, Err(Error::Interrupted { kind: GET_CHAIN, tries: 5 })), "{result:?}");
}

#[test]
fn an_error_of_the_reader_ends_a_list_and_the_socket_goes_on() {
    #[derive(Debug)]
    enum Stop {
        Here,
        Netlink,
    }
    impl From<Error> for Stop {
        fn from(_: Error) -> Self {
            Self::Netlink
        }
    }
    let mut socket = netfilter(&NetNs::new());
    assert!(socket.send_batch(&mut chains("t", 2_000)).unwrap().is_empty());
    let mut request = Request::new(GET_CHAIN, 0, &nfnetlink::header(INET, 0, 0));
    let mut calls = 0;
    let result = socket.dump(&mut request, |_| {
        calls += 1;
        if calls == 3 { Err(Stop::Here) } else { Ok(()) }
    });
    assert!(matches!(result, Err(Stop::Here)) && calls == 3, "{result:?} after {calls} calls");
    assert_eq!(count(&mut socket, GET_CHAIN), 2_000);
}

#[test]
fn a_request_for_what_is_not_there_says_so() {
    let mut socket = netfilter(&NetNs::new());
    let mut request = Request::new(GET_TABLE, 0, &nfnetlink::header(INET, 0, 0));
    request.attributes().put_str(TABLE, "nowhere");
    let error = socket.request_ack(&mut request).unwrap_err();
    assert!(error.is_not_found() && !error.is_exists() && !error.is_busy(), "{error}");
    assert_eq!(error.refusal().unwrap().offset, Some(20));
}

#[test]
fn a_part_of_netfilter_that_the_kernel_has_not_is_told_from_one_that_says_no() {
    let mut socket = netfilter(&NetNs::new());
    let mut ask = |subsystem| {
        let mut request = Request::new(nfnetlink::kind(subsystem, 1), 0, &nfnetlink::header(0, 0, 0));
        request.attributes().put_str(TABLE, "nowhere");
        nfnetlink::is_subsystem_missing(&socket.request_ack(&mut request).unwrap_err())
    };
    assert!(ask(99));
    assert!(!ask(nfnetlink::ACCOUNTING));
}

#[test]
fn the_kernels_own_words_come_through() {
    let mut socket = NetNs::new().run(|| Socket::open(Protocol::Route).unwrap());
    // RTM_GETLINK for a device by a name that no device has room for.
    let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; 16]);
    request.attributes().put_str(libc::IFLA_IFNAME, "a-name-that-is-too-long-for-a-device");
    let error = socket.request_ack(&mut request).unwrap_err();
    assert!(error.refusal().unwrap().text.is_some(), "{error:?}");
}

#[test]
fn addresses_are_listed_through_the_route_protocol() {
    let namespace = NetNs::new();
    namespace.command("ip", &["address", "add", "2001:db8::7/128", "dev", "lo"]);
    let mut socket = namespace.run(|| Socket::open(Protocol::Route).unwrap());
    let mut found = Vec::new();
    let consistency = socket.dump(&mut Request::new(libc::RTM_GETADDR, 0, &[0; 8]), |message| {
        let (_, attributes) = message.split_header::<8>()?;
        for attribute in attributes {
            let attribute = attribute?;
            if attribute.kind == libc::IFA_ADDRESS {
                found.push(attribute.ip()?);
            }
        }
        Ok::<(), Error>(())
    });
    found.sort_unstable();
    assert_eq!(consistency.unwrap(), Consistency::Consistent);
    assert_eq!(found, ["127.0.0.1", "::1", "2001:db8::7"].map(|text| text.parse::<IpAddr>().unwrap()));
}

#[test]
fn generic_families_answer_too() {
    // CTRL_CMD_GETFAMILY of the controller itself, by name (include/uapi/linux/genetlink.h).
    let mut socket = NetNs::new().run(|| Socket::open(Protocol::Generic).unwrap());
    let mut request = Request::new(0x10, 0, &[3, 1, 0, 0]);
    request.attributes().put_str(2, "nlctrl");
    let mut ids = Vec::new();
    let read = |message: Message<'_>| {
        let (_, attributes) = message.split_header::<4>()?;
        ids.extend(attributes.flatten().find(|attribute| attribute.kind == 1).map(|id| id.u16_ne()));
        Ok::<(), Error>(())
    };
    socket.request(&mut request, read).unwrap();
    assert_eq!(ids, [Ok(0x10)]);
}

#[test]
fn a_subscription_hears_what_happens_after_it_began_and_only_in_its_own_namespace() {
    let (namespace, other) = (NetNs::new(), NetNs::new());
    namespace.command("ip", &["address", "add", "192.0.2.1/32", "dev", "lo"]);
    let mut news = namespace.run(|| Subscription::open(Protocol::Route, &[libc::RTNLGRP_IPV4_IFADDR]).unwrap());
    other.command("ip", &["address", "add", "192.0.2.2/32", "dev", "lo"]);
    namespace.command("ip", &["address", "add", "2001:db8::1/128", "dev", "lo"]);
    assert_eq!(news.drain(|message| panic!("{message:?}")).unwrap(), Wake::Nothing);
    namespace.command("ip", &["address", "add", "192.0.2.3/32", "dev", "lo"]);
    namespace.command("ip", &["address", "delete", "192.0.2.1/32", "dev", "lo"]);
    let mut kinds = Vec::new();
    assert_eq!(news.drain(|message| kinds.push(message.kind)).unwrap(), Wake::News);
    assert_eq!(kinds, [libc::RTM_NEWADDR, libc::RTM_DELADDR]);
    assert_eq!(news.drain(|message| panic!("{message:?}")).unwrap(), Wake::Nothing);
}

#[test]
fn a_subscriber_that_does_not_listen_is_told_that_it_has_missed_something() {
    let namespace = NetNs::new();
    let mut news = namespace.run(|| Subscription::open(Protocol::Route, &[libc::RTNLGRP_IPV4_IFADDR]).unwrap());
    let lines = |verb: &str| -> String {
        (0..2_000).map(|n| format!("address {verb} 10.0.{}.{}/32 dev lo\n", n / 250, n % 250)).collect()
    };
    namespace.feed("ip", &["-batch", "-"], &lines("add"));
    assert_eq!(news.drain(|_| ()).unwrap(), Wake::Lost);
    assert_eq!(news.drain(|_| ()).unwrap(), Wake::Nothing);
    namespace.feed("ip", &["-batch", "-"], "address delete 10.0.0.1/32 dev lo");
    assert_eq!(news.drain(|_| ()).unwrap(), Wake::News);
}

#[test]
fn a_group_that_does_not_exist_cannot_be_subscribed_to() {
    let error = Subscription::open(Protocol::Route, &[4_000_000]).unwrap_err();
    assert!(matches!(error, Error::Open { protocol: Protocol::Route, .. }), "{error}");
}
