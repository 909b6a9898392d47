//! A filter of system calls (seccomp). It is unrelated to netlink, but this is the only crate with `unsafe` code.

use std::{io, mem::offset_of, process};

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO,
    SECCOMP_RET_KILL_PROCESS, c_int, c_long, seccomp_data, sock_filter,
};

use crate::sys;

/// Restricts the calling thread, and the threads that it starts, to what a process that relays connections needs: it
/// cannot start programs or processes, write or change files, signal, trace or read other processes, mount, load code
/// into the kernel, gain credentials, or open sockets other than those of IP, Unix, and netlink for routes and netfilter.
/// Such calls fail with `EPERM`, and those that are newer than this list with `ENOSYS`. What is open remains so, and
/// nothing can undo it.
///
/// The list is of what is refused, because a later version of a library may need other calls. The thread must have
/// `no_new_privs` set.
///
/// # Errors
/// If the kernel has no filters, or if the numbers of system calls are unknown for this architecture.
pub fn confine_to_relaying() -> io::Result<()> {
    let architecture = ARCHITECTURE.ok_or(io::ErrorKind::Unsupported)?;
    sys::filter_calls(&program(architecture, process::id()))
}

/// The kernel's number for the architecture (`AUDIT_ARCH_*` in `include/uapi/linux/audit.h`).
const ARCHITECTURE: Option<u32> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
    Some(0xc000_003e)
} else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
    Some(0xc000_00b7)
} else {
    None
};

/// Returns the filter for a process. Instructions follow one another until one of them returns.
fn program(architecture: u32, process: u32) -> Vec<sock_filter> {
    let eperm = || ret(refusal(libc::EPERM));
    // A program may also call the kernel by the numbers of another architecture.
    let mut program = vec![load(offset_of!(seccomp_data, arch))];
    program.extend(unless(BPF_JEQ, architecture, ret(SECCOMP_RET_KILL_PROCESS)));
    program.push(load(offset_of!(seccomp_data, nr)));
    // Its flags are in memory, which filters do not see. The C library calls `clone` instead.
    program.extend(when(BPF_JEQ, number(libc::SYS_clone3), ret(refusal(libc::ENOSYS))));
    for &call in NEW_AND_NEEDED {
        program.extend(when(BPF_JEQ, number(call), ret(SECCOMP_RET_ALLOW)));
    }
    // Also the numbers of x32, a second form of all calls.
    program.extend(when(BPF_JGE, FIRST_NEW, ret(refusal(libc::ENOSYS))));
    for &call in REFUSED.iter().chain(REFUSED_WITH_OLD_NUMBERS) {
        program.extend(when(BPF_JEQ, number(call), eperm()));
    }
    let mut only_if = |call: c_long, checks: Vec<sock_filter>| {
        // The jump's length is one byte; the longest checks have about a dozen instructions.
        let length = u8::try_from(checks.len() + 1).unwrap_or(u8::MAX);
        program.push(jump(BPF_JEQ, number(call), 0, length));
        program.extend(checks);
        program.push(ret(SECCOMP_RET_ALLOW));
    };
    for &(call, flags) in OPENING {
        let writing = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
        only_if(call, [vec![load_argument(flags)], when(BPF_JSET, bits(writing), eperm()).into()].concat());
    }
    let thread = unless(BPF_JSET, bits(libc::CLONE_THREAD), eperm());
    only_if(libc::SYS_clone, [vec![load_argument(0)], thread.into()].concat());
    // `abort` sends a signal to its own thread.
    only_if(libc::SYS_tgkill, [vec![load_argument(0)], unless(BPF_JEQ, process, eperm()).into()].concat());
    let mut checks = vec![load_argument(0)];
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        checks.extend(when(BPF_JEQ, bits(family), ret(SECCOMP_RET_ALLOW)));
    }
    checks.extend(unless(BPF_JEQ, bits(libc::AF_NETLINK), eperm()));
    checks.push(load_argument(2));
    // The host's addresses, to hand flows over, and conntrack entries.
    checks.extend(when(BPF_JEQ, bits(libc::NETLINK_ROUTE), ret(SECCOMP_RET_ALLOW)));
    checks.extend(unless(BPF_JEQ, bits(libc::NETLINK_NETFILTER), eperm()));
    only_if(libc::SYS_socket, checks);
    program.push(ret(SECCOMP_RET_ALLOW));
    program
}

/// The first of the numbers that all architectures have in common (`pidfd_send_signal`), apart from those of old calls.
const FIRST_NEW: u32 = 424;

/// Calls from [`FIRST_NEW`] that libraries use.
const NEW_AND_NEEDED: &[c_long] =
    &[libc::SYS_close_range, libc::SYS_faccessat2, libc::SYS_epoll_pwait2, libc::SYS_futex_waitv];

/// Calls that are refused with any arguments.
#[rustfmt::skip]
const REFUSED: &[c_long] = &[
    // Programs and other processes.
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev,
    libc::SYS_kcmp, libc::SYS_kill, libc::SYS_tkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setns, libc::SYS_unshare, libc::SYS_memfd_create, libc::SYS_personality,
    // Files, which root may write without a capability.
    libc::SYS_unlinkat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_mkdirat,
    libc::SYS_mknodat, libc::SYS_truncate, libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchown, libc::SYS_fchownat,
    libc::SYS_utimensat, libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr, libc::SYS_removexattr,
    libc::SYS_lremovexattr, libc::SYS_fremovexattr,
    libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_swapon, libc::SYS_swapoff,
    libc::SYS_quotactl, libc::SYS_name_to_handle_at, libc::SYS_open_by_handle_at, libc::SYS_fanotify_init,
    // The kernel.
    libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module, libc::SYS_kexec_load, libc::SYS_bpf,
    libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_reboot, libc::SYS_acct, libc::SYS_syslog,
    libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_settimeofday, libc::SYS_clock_settime,
    libc::SYS_clock_adjtime, libc::SYS_adjtimex, libc::SYS_io_setup,
    // Credentials and keys.
    libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid,
    libc::SYS_setresgid, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_setgroups, libc::SYS_capset,
    libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl,
];

/// Calls that only some architectures have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const REFUSED_WITH_OLD_NUMBERS: &[c_long] = &[
    libc::SYS_fork, libc::SYS_vfork, libc::SYS_creat, libc::SYS_unlink, libc::SYS_rename, libc::SYS_renameat,
    libc::SYS_link, libc::SYS_symlink, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_mknod, libc::SYS_chmod,
    libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat,
    libc::SYS_kexec_file_load, libc::SYS_ioperm, libc::SYS_iopl, libc::SYS_modify_ldt,
];
/// `renameat` and `kexec_file_load`, whose names not every C library has.
#[cfg(target_arch = "aarch64")]
const REFUSED_WITH_OLD_NUMBERS: &[c_long] = &[38, 294];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const REFUSED_WITH_OLD_NUMBERS: &[c_long] = &[];

/// Calls that open files, with the index of their flags.
#[cfg(target_arch = "x86_64")]
const OPENING: &[(c_long, usize)] = &[(libc::SYS_openat, 2), (libc::SYS_open, 1)];
#[cfg(not(target_arch = "x86_64"))]
const OPENING: &[(c_long, usize)] = &[(libc::SYS_openat, 2)];

/// Loads a field of `seccomp_data`.
fn load(offset: usize) -> sock_filter {
    let k = u32::try_from(offset).unwrap_or(u32::MAX);
    sock_filter { code: code(BPF_LD | BPF_W | BPF_ABS), jt: 0, jf: 0, k }
}

/// Loads the lower half of an argument, which is all of an `int`. Both architectures are little-endian.
fn load_argument(index: usize) -> sock_filter {
    load(offset_of!(seccomp_data, args) + index * size_of::<u64>())
}

/// Executes an instruction only where the comparison with what was loaded holds.
fn when(comparison: u32, operand: u32, then: sock_filter) -> [sock_filter; 2] {
    [jump(comparison, operand, 0, 1), then]
}

/// Executes an instruction only where the comparison with what was loaded does not hold.
fn unless(comparison: u32, operand: u32, then: sock_filter) -> [sock_filter; 2] {
    [jump(comparison, operand, 1, 0), then]
}

fn jump(comparison: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code(BPF_JMP | comparison | BPF_K), jt, jf, k }
}

fn ret(action: u32) -> sock_filter {
    sock_filter { code: code(BPF_RET | BPF_K), jt: 0, jf: 0, k: action }
}

/// The action that refuses a call with this error.
fn refusal(error: c_int) -> u32 {
    SECCOMP_RET_ERRNO | bits(error)
}

fn number(call: c_long) -> u32 {
    // Numbers are small; an unknown one matches no call.
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn bits(value: c_int) -> u32 {
    value.cast_unsigned()
}

fn code(bits: u32) -> u16 {
    // Codes have one byte.
    u16::try_from(bits).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File, OpenOptions},
        io::{ErrorKind, Read, Write},
        net::{Ipv4Addr, TcpListener, TcpStream},
        os::unix::net::UnixStream,
        process::Command,
        thread,
    };

    use nix::{
        sys::{
            prctl::set_no_new_privs,
            signal::{Signal, kill, raise},
        },
        unistd::getppid,
    };

    use super::*;
    use crate::{Protocol, Socket};

    /// Runs a function in a thread with the filter, which does not affect other threads.
    fn confined<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = thread::spawn(|| {
            set_no_new_privs().unwrap();
            confine_to_relaying().unwrap();
            function()
        });
        thread.join().unwrap()
    }

    #[test]
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), ignore = "there is no filter")]
    fn what_relays_do_is_allowed() {
        confined(|| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let client = thread::spawn(move || TcpStream::connect(address).unwrap().write_all(b"hello").unwrap());
            let mut text = String::new();
            listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
            client.join().unwrap();
            assert_eq!(text, "hello");
            UnixStream::pair().unwrap();
            Socket::open(Protocol::Netfilter).unwrap();
            Socket::open(Protocol::Route).unwrap();
            File::open("/proc/self/status").unwrap();
            raise(Signal::SIGURG).unwrap();
        });
    }

    #[test]
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), ignore = "there is no filter")]
    fn what_relays_do_not_do_is_refused() {
        let path = std::env::temp_dir().join(format!("ferroute-confinement-{}", process::id()));
        fs::write(&path, "").unwrap();
        let file = path.clone();
        let refused = confined(move || {
            [
                ("a program", Command::new("true").status().err()),
                ("writing", OpenOptions::new().append(true).open(&file).err()),
                ("truncating", File::create(&file).err()),
                ("deleting", fs::remove_file(&file).err()),
                ("permissions", fs::set_permissions(&file, fs::metadata(&file).unwrap().permissions()).err()),
                ("audit", sys::open(libc::NETLINK_AUDIT).err()),
                ("packets", sys::open_datagram(libc::AF_PACKET).err()),
                ("signals", kill(getppid(), None).err().map(Into::into)),
            ]
        });
        fs::remove_file(&path).unwrap();
        for (what, error) in refused {
            assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::PermissionDenied), "{what}");
        }
    }
}
