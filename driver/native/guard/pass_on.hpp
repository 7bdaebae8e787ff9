// Passes a signal that is not ours on to the handler before ours.
#pragma once

#include <csignal>

inline void pass_on(const struct sigaction& previous, int number, siginfo_t* info, void* context) {
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler == SIG_IGN && info->si_code <= 0) {
        return;
    } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
        signal(number, SIG_DFL);
        if (info->si_code <= 0) raise(number);  // sent by a process; a fault repeats by itself
    } else {
        previous.sa_handler(number);
    }
}
