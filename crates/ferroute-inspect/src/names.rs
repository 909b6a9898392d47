/// Which of the known names somebody may have meant who wrote `wanted`, the likeliest first, at most three: the same
/// name in another namespace, names that differ in a few letters, and names of which one begins with the other.
pub fn near_names<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let own_name = |full: &str| full.rsplit('/').next().unwrap_or_default().to_owned();
    let wanted_name = own_name(wanted);
    let distance = |full: &str| {
        if own_name(full) == wanted_name {
            return Some(1);
        }
        let distance = strsim::osa_distance(wanted, full);
        // Of short names, a few letters are all.
        let is_near = distance <= MOST_EDITS && distance * 3 <= wanted_name.len();
        let begins = full.starts_with(wanted) || wanted.starts_with(full);
        (is_near || begins).then_some(distance)
    };
    let mut near: Vec<(usize, &str)> = known.into_iter().filter_map(|full| Some((distance(full)?, full))).collect();
    near.sort_unstable();
    near.into_iter().map(|(_, name)| name).take(MOST_NAMES).collect()
}

/// Letters that may differ.
const MOST_EDITS: usize = 4;
/// Names that are told.
const MOST_NAMES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_nearly_the_same_are_found_nearest_first() {
        let known = ["shop/cart", "shop/carts", "shop/catalogue", "default/cart", "kube-system/kube-dns"];
        assert_eq!(near_names("shop/crat", known), ["shop/cart"]);
        assert_eq!(near_names("shop/cat", known), ["shop/cart", "shop/catalogue"]);
        assert_eq!(near_names("web/cart", known), ["default/cart", "shop/cart"]);
        assert_eq!(near_names("kube-system/dns", known), ["kube-system/kube-dns"; 0]);
        assert_eq!(near_names("kube-system/kubedns", known), ["kube-system/kube-dns"]);
    }

    #[test]
    fn names_that_are_not_alike_are_not_told() {
        assert!(near_names("a/b", ["a/c", "x/y"]).is_empty());
    }
}
