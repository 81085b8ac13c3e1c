// Running something in a process of its own, for tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>

namespace blockscale::test {

/// Runs `body` in a child process. Its result, below 100, is the exit status; 100 is an exception.
inline pid_t spawn(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int status = 100;
  try {
    status = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  ::_exit(status);
}

/// The exit status of a child, or 128 + the signal that ended it.
inline int wait_for(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace blockscale::test
