#include "runtime/files/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace blockscale::runtime {

FileLock::FileLock(const std::filesystem::path& path, std::chrono::milliseconds longest_wait)
    : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) return;
  // Asks again and again: flock itself would wait for as long as it takes.
  constexpr std::chrono::milliseconds kPause(10);
  const auto deadline = std::chrono::steady_clock::now() + longest_wait;
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return;
    if (std::chrono::steady_clock::now() >= deadline) {
      is_of_another_ = true;
      return;
    }
    std::this_thread::sleep_for(kPause);
  }
  is_held_ = true;
}

FileLock::~FileLock() {
  if (descriptor_ < 0) return;
  // A child that was forked meanwhile has the descriptor too: without this, the lock would be that
  // child's for as long as it lives.
  if (is_held_) (void)::flock(descriptor_, LOCK_UN);
  ::close(descriptor_);
}

}  // namespace blockscale::runtime
