// A piece of memory that processes of one machine share.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace troika::comm::shm {

// Anonymous memory (memfd_create): it has no name that a crash could leave behind, is not bounded
// by the size of /dev/shm, and goes with the last process that maps it. Others open it through its
// owner's /proc/<pid>/fd, which takes the same user and the same PID namespace.
class Segment {
 public:
  // Zeroed. Throws Error(failure) with the system's reason.
  static Segment create(size_t bytes);
  // Another process's segment. Throws Error(usage) when it cannot be opened or has another size.
  static Segment open(pid_t pid, int fd, size_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // The creator's descriptor, which must stay open while others may come.
  int fd() const { return fd_; }

 private:
  Segment(char* data, size_t bytes, int fd) : data_(data), bytes_(bytes), fd_(fd) {}

  char* data_;
  size_t bytes_;
  int fd_;
};

}  // namespace troika::comm::shm
