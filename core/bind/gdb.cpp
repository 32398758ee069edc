#include "bind/gdb.h"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

// Names and layouts are gdb's. Protected: gdb finds them in the dynamic symbol table, and other
// libraries of the process that have the same names do not take their place.
extern "C" {

struct jit_code_entry {
  jit_code_entry* next_entry;
  jit_code_entry* prev_entry;
  const char* symfile_addr;
  std::uint64_t symfile_size;
};

struct jit_descriptor {
  std::uint32_t version;
  std::uint32_t action_flag;
  jit_code_entry* relevant_entry;
  jit_code_entry* first_entry;
};

__attribute__((visibility("protected"), noinline, used)) void __jit_debug_register_code();
void __jit_debug_register_code() { asm volatile("" ::: "memory"); }

extern jit_descriptor __jit_debug_descriptor;
__attribute__((visibility("protected"), used)) jit_descriptor __jit_debug_descriptor = {
    1, 0, nullptr, nullptr};

}  // extern "C"

namespace tilevm::bind {
namespace {

enum Action : std::uint32_t { kNone, kRegister, kUnregister };

#if defined(__aarch64__)
constexpr std::uint16_t kMachine = EM_AARCH64;
#else
constexpr std::uint16_t kMachine = EM_X86_64;
#endif

// An object file with one function in a section that lies at the code's address.
std::vector<char> object_file(std::span<const std::byte> code, std::string_view name) {
  static constexpr char kSections[] = "\0.text\0.symtab\0.strtab\0.shstrtab";
  struct File {
    Elf64_Ehdr header{};
    Elf64_Shdr sections[5]{};  // none, .text, .symtab, .strtab, .shstrtab
    Elf64_Sym symbols[2]{};
    char section_names[sizeof kSections];
  } file;
  std::memcpy(file.section_names, kSections, sizeof kSections);

  Elf64_Ehdr& header = file.header;
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_REL;
  header.e_machine = kMachine;
  header.e_version = EV_CURRENT;
  header.e_shoff = offsetof(File, sections);
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 5;
  header.e_shstrndx = 4;

  const auto section = [&](int i, std::uint32_t name_at, std::uint32_t type, std::size_t offset,
                           std::size_t size) -> Elf64_Shdr& {
    Elf64_Shdr& row = file.sections[i];
    row.sh_name = name_at;
    row.sh_type = type;
    row.sh_offset = offset;
    row.sh_size = size;
    row.sh_addralign = 1;
    return row;
  };
  Elf64_Shdr& text = section(1, 1, SHT_NOBITS, 0, code.size());
  text.sh_flags = SHF_ALLOC | SHF_EXECINSTR;
  text.sh_addr = reinterpret_cast<std::uint64_t>(code.data());
  Elf64_Shdr& symtab = section(2, 7, SHT_SYMTAB, offsetof(File, symbols), sizeof file.symbols);
  symtab.sh_link = 3;
  symtab.sh_info = 1;  // the first symbol that is not local
  symtab.sh_entsize = sizeof(Elf64_Sym);
  symtab.sh_addralign = 8;
  section(3, 15, SHT_STRTAB, sizeof file, name.size() + 2);
  section(4, 23, SHT_STRTAB, offsetof(File, section_names), sizeof kSections);

  Elf64_Sym& function = file.symbols[1];
  function.st_name = 1;
  function.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
  function.st_shndx = 1;
  function.st_size = code.size();

  std::vector<char> bytes(sizeof file + name.size() + 2);  // names: "", `name`
  std::memcpy(bytes.data(), &file, sizeof file);
  std::memcpy(bytes.data() + sizeof file + 1, name.data(), name.size());
  return bytes;
}

struct Registered {
  jit_code_entry entry{};
  std::vector<char> file;
};

std::unordered_map<const void*, std::unique_ptr<Registered>>& registered() {
  static auto* const map = new std::unordered_map<const void*, std::unique_ptr<Registered>>;
  return *map;
}

void tell(Action action, jit_code_entry* entry) {
  __jit_debug_descriptor.action_flag = action;
  __jit_debug_descriptor.relevant_entry = entry;
  __jit_debug_register_code();
  __jit_debug_descriptor.action_flag = kNone;
}

void add(std::span<const std::byte> code, std::string_view name) {
  auto made = std::make_unique<Registered>();
  made->file = object_file(code, name);
  jit_code_entry& entry = made->entry;
  entry.symfile_addr = made->file.data();
  entry.symfile_size = made->file.size();
  entry.next_entry = __jit_debug_descriptor.first_entry;
  registered()[code.data()] = std::move(made);
  if (entry.next_entry != nullptr) entry.next_entry->prev_entry = &entry;
  __jit_debug_descriptor.first_entry = &entry;
  tell(kRegister, &entry);
}

void remove(const void* code) noexcept {
  const auto found = registered().find(code);
  if (found == registered().end()) return;
  jit_code_entry& entry = found->second->entry;
  if (entry.prev_entry != nullptr) {
    entry.prev_entry->next_entry = entry.next_entry;
  } else {
    __jit_debug_descriptor.first_entry = entry.next_entry;
  }
  if (entry.next_entry != nullptr) entry.next_entry->prev_entry = entry.prev_entry;
  tell(kUnregister, &entry);
  registered().erase(found);
}

}  // namespace

const exec::native::Debugger gdb = {add, remove};

}  // namespace tilevm::bind
