#include "troika/base/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>

#include "troika/base/error.h"

namespace troika {

std::filesystem::path make_temporary_folder(const std::string& prefix) {
  std::string name = (std::filesystem::temp_directory_path() / (prefix + "XXXXXX")).string();
  if (!::mkdtemp(name.data())) {
    throw Error("base", ErrorKind::failure,
                {.what = "cannot make the folder " + name, .got = std::strerror(errno)});
  }
  return name;
}

TemporaryFolder::TemporaryFolder() : path_(make_temporary_folder("troika-")) {}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace troika
