# SPDX-License-Identifier: Apache-2.0
"""Writes the archives by Python's zipfile that stand here, into the working folder."""
import io, sys, zipfile
def members(z):
    z.writestr('archive/data.pkl', b'hello ' * 50)
    z.writestr('archive/empty', b'')
class Pipe(io.RawIOBase):
    def __init__(self, file): self.file = file
    def writable(self): return True
    def write(self, data): return self.file.write(data)
zipfile.ZipFile('no_entries.zip', 'w').close()
with zipfile.ZipFile('stored.zip', 'w') as z: members(z)
with zipfile.ZipFile('deflated.zip', 'w', zipfile.ZIP_DEFLATED) as z: members(z)
with zipfile.ZipFile('zip64.zip', 'w') as z:
    with z.open('archive/data.pkl', 'w', force_zip64=True) as f: f.write(b'hello ' * 50)
with open('streamed.zip', 'wb') as out:
    with zipfile.ZipFile(Pipe(out), 'w', zipfile.ZIP_DEFLATED) as z: members(z)
with open('streamed_zip64.zip', 'wb') as out:
    with zipfile.ZipFile(Pipe(out), 'w') as z:
        with z.open('archive/data.pkl', 'w', force_zip64=True) as f: f.write(b'hello ' * 50)
