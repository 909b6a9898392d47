use super::*;

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const OTHER_CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

fn endpoint(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 244, 0, number], 80))
}

fn balancer(affinity: Option<Duration>) -> Balancer {
    let mut balancer = Balancer::new(Arc::default());
    balancer.update(&[endpoint(1), endpoint(2), endpoint(3)], affinity);
    balancer
}

/// Chooses an endpoint for a connection that succeeds.
fn connect(balancer: &mut Balancer, client: IpAddr, now: Instant) -> SocketAddr {
    let chosen = balancer.candidates(client, now)[0];
    balancer.connected(client, chosen, now);
    chosen
}

#[test]
fn connections_are_spread_round_robin() {
    let (mut balancer, now) = (balancer(None), Instant::now());
    let chosen: Vec<_> = (0..6).map(|_| connect(&mut balancer, CLIENT, now)).collect();
    assert_eq!(chosen, [1, 2, 3, 1, 2, 3].map(endpoint));
}

#[test]
fn every_endpoint_is_a_candidate() {
    let (mut balancer, now) = (balancer(None), Instant::now());
    balancer.candidates(CLIENT, now);
    assert_eq!(balancer.candidates(CLIENT, now), [2, 3, 1].map(endpoint));
    balancer.update(&[], None);
    assert!(balancer.candidates(CLIENT, now).is_empty());
}

#[test]
fn failed_endpoints_are_tried_last_until_they_recover() {
    let (mut balancer, now) = (balancer(None), Instant::now());
    balancer.failed(endpoint(1), now);
    assert_eq!(balancer.candidates(CLIENT, now), [2, 3, 1].map(endpoint));
    // Other changes do not clear the failure.
    balancer.update(&[endpoint(1), endpoint(2)], None);
    assert_eq!(balancer.candidates(CLIENT, now), [2, 1].map(endpoint));
    balancer.connected(CLIENT, endpoint(1), now);
    assert_eq!(balancer.candidates(CLIENT, now), [1, 2].map(endpoint));
    balancer.failed(endpoint(2), now);
    assert_eq!(balancer.candidates(CLIENT, now + SUSPECT_FOR)[0], endpoint(2));
}

#[test]
fn a_client_with_affinity_keeps_its_endpoint() {
    let (mut balancer, now) = (balancer(Some(Duration::from_secs(60))), Instant::now());
    let mine = connect(&mut balancer, CLIENT, now);
    let other = connect(&mut balancer, OTHER_CLIENT, now);
    assert_ne!(mine, other);
    for seconds in [1, 59, 100, 159] {
        assert_eq!(connect(&mut balancer, CLIENT, now + Duration::from_secs(seconds)), mine);
    }
}

#[test]
fn affinity_expires_without_new_connections() {
    let timeout = Duration::from_secs(60);
    let (mut balancer, now) = (balancer(Some(timeout)), Instant::now());
    let first = connect(&mut balancer, CLIENT, now);
    assert_ne!(connect(&mut balancer, CLIENT, now + timeout), first);
}

#[test]
fn clients_of_removed_endpoints_get_another_one() {
    let (mut balancer, now) = (balancer(Some(Duration::from_secs(60))), Instant::now());
    assert_eq!(connect(&mut balancer, CLIENT, now), endpoint(1));
    balancer.update(&[endpoint(2), endpoint(3)], Some(Duration::from_secs(60)));
    let new = connect(&mut balancer, CLIENT, now);
    assert_ne!(new, endpoint(1));
    // The client stays there when the old endpoint returns.
    balancer.update(&[endpoint(1), endpoint(2), endpoint(3)], Some(Duration::from_secs(60)));
    assert_eq!(connect(&mut balancer, CLIENT, now), new);
}

#[test]
fn a_client_moves_when_its_endpoint_fails() {
    let (mut balancer, now) = (balancer(Some(Duration::from_secs(60))), Instant::now());
    let first = connect(&mut balancer, CLIENT, now);
    balancer.failed(first, now);
    let candidates = balancer.candidates(CLIENT, now);
    assert_eq!(candidates[0], first, "the client's endpoint may have recovered");
    balancer.connected(CLIENT, candidates[1], now);
    assert_eq!(balancer.candidates(CLIENT, now)[0], candidates[1]);
}

#[test]
fn a_flood_of_clients_is_served_without_affinity() {
    let (mut balancer, now) = (balancer(Some(Duration::from_secs(60))), Instant::now());
    let mine = connect(&mut balancer, CLIENT, now);
    flood(&mut balancer, now);
    assert_eq!(balancer.clients.len(), MAX_CLIENTS / 9);
    assert_eq!(connect(&mut balancer, CLIENT, now), mine);
    // Expired clients are replaced.
    let later = now + Duration::from_secs(60);
    let other = connect(&mut balancer, OTHER_CLIENT, later);
    assert_eq!(balancer.clients.len(), 1);
    assert_eq!(connect(&mut balancer, OTHER_CLIENT, later), other);
}

/// Connects clients until one is not remembered.
fn flood(balancer: &mut Balancer, now: Instant) {
    for number in 0x0b00_0000.. {
        let before = balancer.clients.len();
        connect(balancer, IpAddr::V4(u32::into(number)), now);
        if balancer.clients.len() == before {
            break;
        }
    }
}

#[test]
fn floods_of_clients_of_many_listeners_leave_some_for_others() {
    let (budget, now) = (Arc::<ClientBudget>::default(), Instant::now());
    let new = || {
        let mut balancer = Balancer::new(budget.clone());
        balancer.update(&[endpoint(1), endpoint(2)], Some(Duration::from_secs(60)));
        balancer
    };
    let mut greedy: Vec<Balancer> = (0..34).map(|_| new()).collect();
    greedy.iter_mut().for_each(|balancer| flood(balancer, now));
    let mut other = new();
    flood(&mut other, now);
    assert!(other.clients.len() > 1_000, "{}", other.clients.len());
    greedy[0].update(&[], Some(Duration::from_secs(60)));
    greedy[1].update(&[endpoint(1)], None);
    let remembered: usize = greedy.iter().chain([&other]).map(|balancer| balancer.clients.len()).sum();
    assert_eq!(budget.0.load(Relaxed), remembered);
    drop((greedy, other));
    assert_eq!(budget.0.load(Relaxed), 0);
}
