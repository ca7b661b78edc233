#include "troika/base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "troika/base/error.h"

namespace troika {

namespace {

[[noreturn]] void fail(const std::filesystem::path& folder, size_t bytes, int error) {
  throw Error("base", error == ENOENT || error == EACCES ? ErrorKind::usage : ErrorKind::failure,
              {.what = fmt::format("cannot keep {} bytes in a file in {}", bytes, folder.string()),
               .got = std::strerror(error)});
}

int make_file(const std::filesystem::path& folder, size_t bytes) {
  std::string name = (folder / "troika-XXXXXX").string();
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) fail(folder, bytes, errno);
  ::unlink(name.c_str());
  const int error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (error == 0) return file;
  ::close(file);
  fail(folder, bytes, error);
}

uintptr_t page_size() {
  static const auto size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& folder, size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  const int file = make_file(folder, bytes);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  ::close(file);
  if (memory == MAP_FAILED) fail(folder, bytes, error);
  data_ = static_cast<char*>(memory);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

void MappedFile::prefetch(const void* begin, size_t bytes) const {
  const auto first = reinterpret_cast<uintptr_t>(begin) / page_size() * page_size();
  const auto end = reinterpret_cast<uintptr_t>(begin) + bytes;
  ::madvise(reinterpret_cast<void*>(first), end - first, MADV_WILLNEED);
}

void MappedFile::release(const void* begin, size_t bytes) const {
  const auto from = reinterpret_cast<uintptr_t>(begin);
  const auto first = (from + page_size() - 1) / page_size() * page_size();
  const auto end = (from + bytes) / page_size() * page_size();
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

}  // namespace troika
