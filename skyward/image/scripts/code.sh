# code FOLDER: copies local code into the image, readable by everybody.
mkdir -p "$1"
cp -r /run/code/. "$1"
chmod -R a+rX "$1"
