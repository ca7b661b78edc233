// A segment of memory that the processes of one machine share.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace troika::comm::shm {

// Anonymous shared memory (memfd_create). It has no name that could remain after a crash, is not
// limited by the size of /dev/shm, and is freed with the last process that maps it. Other processes
// open it through its owner's /proc/<pid>/fd, which requires the same user and the same PID
// namespace.
class Segment {
 public:
  // Creates a zeroed segment. Throws Error(failure) with the system's reason.
  static Segment create(size_t bytes);
  // Opens another process's segment. Throws Error(usage) when it cannot be opened or has another
  // size.
  static Segment open(pid_t pid, int fd, size_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // The creator's file descriptor. It must stay open while other processes may open the segment.
  int fd() const { return fd_; }

 private:
  Segment(char* data, size_t bytes, int fd) : data_(data), bytes_(bytes), fd_(fd) {}

  char* data_;
  size_t bytes_;
  int fd_;
};

}  // namespace troika::comm::shm
