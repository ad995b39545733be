# SPDX-License-Identifier: Apache-2.0
"""The ways in which each system call can fail: the errors that Linux and its file systems return for it, and short counts.

A call that is not listed fails with OTHER, so that a new one in the tool is tried as well.
"""
import errno

# A file system that is broken, full, over its quota or over the network returns these for any change.
STORAGE = "EIO ENOSPC EDQUOT ESTALE EROFS"
ERRORS = {
    "openat": "EMFILE ENFILE ENOMEM EIO EACCES EPERM EINTR ENOSPC EDQUOT ESTALE",
    "openat2": "EMFILE ENFILE ENOMEM EIO EACCES EPERM EINTR EAGAIN ENOSYS",
    "read": "EIO EINTR ENOMEM ESTALE", "pread64": "EIO EINTR ENOMEM ESTALE",
    "write": "EIO ENOSPC EDQUOT EINTR EFBIG", "writev": "EIO ENOSPC EDQUOT EINTR EFBIG",
    "pwrite64": "EIO ENOSPC EDQUOT EINTR EFBIG ESTALE",
    "copy_file_range": "EIO ENOSPC EDQUOT EINTR EXDEV EINVAL EOPNOTSUPP ENOSYS EPERM ENOMEM",
    "sendfile": "EIO EINTR EINVAL ENOMEM",
    "fsync": "EIO ENOSPC EDQUOT EINTR EINVAL", "fdatasync": "EIO ENOSPC EDQUOT EINTR EINVAL", "sync_file_range": "EIO ENOSPC ENOMEM ESPIPE ENOSYS",
    "fallocate": "ENOSPC EDQUOT EIO EINTR EFBIG EOPNOTSUPP ENOSYS EPERM", "ftruncate": "EIO ENOSPC EDQUOT EINTR EFBIG EPERM",
    "flock": "EINTR ENOLCK EIO ENOSYS EOPNOTSUPP EAGAIN", "fcntl": "EMFILE EINVAL EPERM",
    "renameat": f"{STORAGE} EACCES EPERM EBUSY ENOMEM", "renameat2": f"{STORAGE} EACCES EPERM EBUSY ENOMEM EINVAL ENOSYS EOPNOTSUPP",
    "unlinkat": "EIO EACCES EPERM EBUSY EROFS ENOMEM", "unlink": "EIO EACCES EPERM EBUSY EROFS ENOMEM",
    "mkdirat": f"{STORAGE} EACCES EPERM EMLINK ENOMEM", "linkat": f"{STORAGE} EACCES EPERM EMLINK EXDEV ENOMEM EOPNOTSUPP",
    "symlinkat": STORAGE, "utimensat": f"{STORAGE} EPERM", "fchmod": f"{STORAGE} EPERM",
    # Not EACCES: a folder that may not be searched looks empty every time.
    "newfstatat": "EIO ENOMEM ESTALE", "fstat": "EIO ENOMEM ESTALE", "stat": "EIO ENOMEM", "statx": "EIO ENOMEM ENOSYS EPERM",
    "statfs": "EIO EACCES ENOMEM ENOSYS", "fstatfs": "EIO ENOMEM ENOSYS", "access": "EIO ENOMEM", "readlink": "EIO ENOMEM",
    "getdents64": "EIO ENOMEM ESTALE", "getcwd": "ENOMEM EACCES", "lseek": "ESPIPE EINVAL", "ioctl": "EIO ENOTTY EOPNOTSUPP EPERM ENOSPC EXDEV",
    "fadvise64": "EINVAL ESPIPE ENOSYS", "madvise": "EINVAL ENOMEM EAGAIN EIO",
    "mmap": "ENOMEM", "mremap": "ENOMEM", "brk": "ENOMEM", "mprotect": "ENOMEM EACCES", "munmap": "ENOMEM",
    "clone": "EAGAIN ENOMEM EPERM", "clone3": "EAGAIN ENOMEM EPERM ENOSYS", "fork": "EAGAIN ENOMEM", "vfork": "EAGAIN ENOMEM",
    "pipe2": "EMFILE ENFILE ENOMEM", "poll": "EINTR ENOMEM", "wait4": "EINTR", "kill": "EPERM ESRCH", "tgkill": "EPERM ESRCH",
    "prctl": "EINVAL EPERM EFAULT", "seccomp": "EINVAL EPERM ENOSYS", "prlimit64": "EPERM EINVAL", "setrlimit": "EPERM EINVAL", "close_range": "ENOSYS EINVAL",
    "landlock_create_ruleset": "ENOSYS EOPNOTSUPP ENOMEM", "landlock_restrict_self": "EPERM E2BIG EBADFD",
    "futex_wait": "EAGAIN EINTR", "getrandom": "ENOSYS EINTR EAGAIN", "clock_nanosleep": "EINTR", "sched_getaffinity": "EINVAL EPERM",
    "rt_sigaction": "EINVAL", "rt_sigprocmask": "EINVAL", "sysinfo": "EFAULT EPERM", "uname": "EFAULT", "set_robust_list": "ENOSYS EINVAL", "rseq": "ENOSYS EPERM",
}
OTHER = "EIO EPERM ENOSYS"
# Linux has closed the descriptor even if close fails.
DONE_ALL_THE_SAME = {"close": "EIO EINTR ENOSPC EDQUOT"}
# Failures that do not go away by themselves: later calls fail as well.
LASTING = {"EIO", "ENOSPC", "EDQUOT", "EMFILE", "ENOMEM", "ENOSYS", "EROFS", "EPERM", "EACCES", "EOPNOTSUPP"}
# Calls that may move fewer bytes than requested.
COUNTED = {"read": (1, 7), "pread64": (1, 7), "write": (1, 7), "pwrite64": (1, 7), "copy_file_range": ()}
# The end of a file that is shorter than it was.
ENDS = {"pread64"}
# These cannot fail, do not return, or fail only for arguments that the C library never gives.
NEVER = {"exit", "exit_group", "rt_sigreturn", "futex_other", "getpid", "gettid", "getuid", "geteuid", "getgid", "getegid", "sched_yield",
         "set_tid_address", "arch_prctl", "restart_syscall", "rseq", "set_robust_list", "execve", "rt_sigprocmask", "rt_sigaction", "gettimeofday", "clock_gettime"}


def faults_of(call):
    """(what, stays) of every way that `call` can fail."""
    if call in NEVER:
        return []
    faults = []
    done = DONE_ALL_THE_SAME.get(call)
    for name in (done or ERRORS.get(call, OTHER)).split():
        faults.append((f"{'done' if done else 'error'}={getattr(errno, name)}", False))
        if name in LASTING:
            faults.append((faults[-1][0], True))
    faults += [(f"short={count}", False) for count in COUNTED.get(call, ())]
    faults += [("short=5", True)] if call in COUNTED else []
    faults += [("return=0", False)] if call in ENDS else []
    return faults
